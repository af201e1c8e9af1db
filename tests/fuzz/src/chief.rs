//! The target `chief`: a job that receives any messages in any order. Its body is in `pushpull-chief`,
//! because it drives what no other crate sees.

use crate::corpus::Form;
use crate::limits::Limits;
use crate::target::{Class, Target};

pub(crate) const TARGET: Target = Target {
    name: "chief",
    class: Class::State,
    about: &["chief/src/job"],
    check: pushpull_chief::fuzz::check,
    stages: &pushpull_chief::fuzz::STAGES,
    form: Form::Script,
    content: |_| 0,
    limits: Limits { allocated_bytes: 512 << 20, ..Limits::usual() },
    ..Target::USUAL
};
