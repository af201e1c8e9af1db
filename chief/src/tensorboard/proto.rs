//! The protobuf messages of an event file, written by hand: `tensorflow/core/util/event.proto` and the
//! messages that it refers to, reduced to the fields that are used here.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// The time of the event, in seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "EventKind", tags = "3, 4, 5, 7")]
    pub what: Option<EventKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum EventKind {
    #[prost(string, tag = "3")]
    FileVersion(String),
    /// An encoded [`GraphDef`].
    #[prost(bytes, tag = "4")]
    Graph(Vec<u8>),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    Session(SessionLog),
}

/// The version of the file format. It is the first version in which a [`SessionLog`] marks the step at which
/// a job was restarted.
pub(super) const FILE_VERSION: &str = "brain.Event:2";

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

impl SessionLog {
    /// The message that marks the beginning of a run. Readers then discard what an earlier run plotted at
    /// this step and at later steps.
    pub(super) const START: Self = Self { status: 1 };
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Metadata>,
    #[prost(oneof = "ValueKind", tags = "2, 4, 5, 8")]
    pub shown: Option<ValueKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum ValueKind {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "4")]
    Image(Image),
    #[prost(message, tag = "5")]
    Histogram(Histogram),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub plugin: Option<Plugin>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Plugin {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(int32, tag = "1")]
    pub height: i32,
    #[prost(int32, tag = "2")]
    pub width: i32,
    /// The number of color channels.
    #[prost(int32, tag = "3")]
    pub colorspace: i32,
    /// An image in the PNG format.
    #[prost(bytes, tag = "4")]
    pub encoded: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub num: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    pub bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub bucket: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShape>,
    #[prost(bytes, repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

/// The value of TensorFlow's enumeration `DataType` for 32-bit floating-point numbers.
pub(super) const DT_FLOAT: i32 = 1;
pub(super) const DT_DOUBLE: i32 = 2;
pub(super) const DT_INT32: i32 = 3;
pub(super) const DT_UINT8: i32 = 4;
pub(super) const DT_STRING: i32 = 7;
pub(super) const DT_INT64: i32 = 9;
pub(super) const DT_BOOL: i32 = 10;

#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeDef>,
    #[prost(message, optional, tag = "4")]
    pub versions: Option<Versions>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Versions {
    #[prost(int32, tag = "1")]
    pub producer: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub op: String,
    #[prost(string, repeated, tag = "3")]
    pub input: Vec<String>,
    #[prost(string, tag = "4")]
    pub device: String,
    #[prost(btree_map = "string, message", tag = "5")]
    pub attr: BTreeMap<String, Attr>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attr {
    #[prost(oneof = "AttrValue", tags = "1, 2, 6, 7")]
    pub value: Option<AttrValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum AttrValue {
    #[prost(message, tag = "1")]
    List(AttrList),
    #[prost(bytes, tag = "2")]
    Text(Vec<u8>),
    #[prost(int32, tag = "6")]
    Type(i32),
    #[prost(message, tag = "7")]
    Shape(TensorShape),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttrList {
    #[prost(message, repeated, tag = "7")]
    pub shape: Vec<TensorShape>,
}
