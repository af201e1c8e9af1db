//! The target `shard`: a shard that receives any messages in any order. Its body is in `pushpull-ps`, because
//! it drives what no other crate sees.

use crate::corpus::Form;
use crate::limits::Limits;
use crate::target::{Class, Target};

pub(crate) const TARGET: Target = Target {
    name: "shard",
    class: Class::State,
    about: &["ps/src/claims", "ps/src/shard", "ps/src/sync"],
    check: pushpull_ps::fuzz::check,
    stages: &pushpull_ps::fuzz::STAGES,
    form: Form::Script,
    content: |_| 0,
    limits: Limits { allocated_bytes: 512 << 20, ..Limits::usual() },
    ..Target::USUAL
};
