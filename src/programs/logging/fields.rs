//! The message and the fields of an event, and the task that it belongs to.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, Scope};

/// The name of the span of a task, and of that span's only field.
const TASK: &str = "task";

/// The message and the fields of an event or a span.
#[derive(Debug, Default)]
pub(super) struct Fields {
    pub message: String,
    pub fields: Map<String, Value>,
}

impl Fields {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    /// Returns the message and the fields on one line.
    pub(super) fn text(self) -> String {
        self.fields.into_iter().fold(self.message, |text, (name, value)| format!("{text} {name}={value}"))
    }

    fn put(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.put(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.put(field, value.into()),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

/// An extension of a span: the name of the task to which all events within the span belong.
pub(super) struct OfTask(pub(super) String);

/// If a new span is the span of a task, stores the task's name in it.
pub(super) fn remember<S>(attributes: &Attributes<'_>, id: &Id, context: &Context<'_, S>)
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    if attributes.metadata().name() != TASK {
        return;
    }
    let mut fields = Fields::default();
    attributes.record(&mut fields);
    if let (Some(span), Some(Value::String(task))) = (context.span(id), fields.fields.remove(TASK)) {
        span.extensions_mut().insert(OfTask(task));
    }
}

/// Returns the task's name from the innermost span in which a task's name is stored.
pub(super) fn task_of<S>(scope: Option<Scope<'_, S>>) -> Option<String>
where
    S: for<'a> LookupSpan<'a>,
{
    scope.into_iter().flatten().find_map(|span| span.extensions().get::<OfTask>().map(|task| task.0.clone()))
}
