//! Which request is answered by what, and what every answer bears: one table. Knows neither sockets nor tasks.

use std::sync::Arc;
use std::time::Instant;

use actix_web::http::header::{self, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use pushpull_chief::{ChiefView, Wish};
use pushpull_messages::observe::{ChiefSnapshot, CurvePoint, PlacementRow};

use super::about::About;
use super::actors::actors;
use super::body::shared;
use super::connections::Place;
use super::events::Events;
use super::host::is_loopback;
use super::rendered::{Rendered, json};
use super::token::Token;
use super::views::Views;
use super::{health, metrics, page, targets, wishes};
use crate::logging;

/// What pages from here may load, and who may frame them: nothing from elsewhere, nobody.
const POLICY: &str = include_str!("page/policy.txt").trim_ascii_end();

/// What there is, for whoever asks for `/` where there is no page.
const INDEX: &[(&str, &str)] = &[
    ("/metrics", "for Prometheus"),
    ("/actors", "every actor: what it does, its queue, its times"),
    ("/tasks", "all that this process's tasks say of themselves"),
    ("/healthz", "whether they live"),
    ("/readyz", "whether they do what they are for"),
    ("/config", "what this process was told"),
    ("/log", "its last log lines"),
];

/// What requests are answered from.
pub(super) struct Routes {
    pub views: Views,
    pub token: Option<Token>,
    pub about: About,
    /// Whether only this machine is meant to reach it.
    is_local: bool,
    /// Where this endpoint is.
    address: String,
    job: Rendered<ChiefSnapshot>,
    curves: Rendered<Vec<CurvePoint>>,
    placement: Rendered<Vec<PlacementRow>>,
    targets: Rendered<ChiefSnapshot>,
    events: Events,
}

impl Routes {
    pub(super) fn new(
        views: Views,
        token: Option<Token>,
        about: About,
        is_local: bool,
        address: String,
    ) -> Self {
        Self {
            views,
            token,
            about,
            is_local,
            address,
            job: Rendered::default(),
            curves: Rendered::default(),
            placement: Rendered::default(),
            targets: Rendered::default(),
            events: Events::default(),
        }
    }

    /// The job as it was then, and whether a person may have it save or stop.
    pub(super) fn job(&self, job: &Arc<ChiefSnapshot>) -> Bytes {
        let accepts_wishes = self.token.is_some();
        self.job.of(job, |job| ChiefSnapshot { accepts_wishes, ..job.clone() })
    }
}

/// Answers any request.
pub(super) async fn serve(
    request: HttpRequest,
    body: web::Payload,
    routes: web::Data<Routes>,
) -> HttpResponse {
    if let Some(place) = request.conn_data::<Place>() {
        place.asks(Instant::now());
    }
    let mut answer = match refused(&request, &routes) {
        Some(refusal) => refusal,
        None => answer(&request, body, &routes).await,
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn refused(request: &HttpRequest, routes: &Routes) -> Option<HttpResponse> {
    if !routes.is_local {
        return None;
    }
    let named = request.headers().get_all(header::HOST).map(|host| host.to_str().unwrap_or_default());
    let mut named = named.chain(request.uri().host());
    named.any(|host| !is_loopback(host)).then(|| {
        let reason = "this endpoint is for this machine alone: ask for it as localhost, or start the task with another \
                      --http-addr";
        refusal(StatusCode::FORBIDDEN, reason)
    })
}

async fn answer(request: &HttpRequest, body: web::Payload, routes: &web::Data<Routes>) -> HttpResponse {
    let (path, views) = (request.path(), &routes.views);
    let chief = views.chief();
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    match (path, chief) {
        ("/metrics" | "/actors" | "/tasks" | "/healthz" | "/readyz" | "/config" | "/log" | "/", _)
            if !reads =>
        {
            wrong_method("GET")
        }
        ("/job" | "/curves" | "/placement" | "/targets" | "/events" | "/page.css" | "/page.js", Some(_))
            if !reads =>
        {
            wrong_method("GET")
        }
        ("/metrics", _) => metrics::answer(&views.seen().await),
        ("/actors", _) => {
            let seen = views.seen().await;
            told(seen.written.actors.get_or_init(|| json(&actors(&seen.tasks))).clone())
        }
        ("/tasks", _) => {
            let seen = views.seen().await;
            told(seen.written.tasks.get_or_init(|| json(&*seen.tasks)).clone())
        }
        ("/healthz", _) => health::alive(&views.seen().await, &views.failed()),
        ("/readyz", _) => health::ready(&views.seen().await),
        ("/config", _) => told(json(&routes.about)),
        ("/log", _) => told(json(&logging::recent())),
        ("/", Some(_)) => page::index(),
        ("/", None) => index(&routes.about),
        ("/page.css", Some(_)) => page::css(),
        ("/page.js", Some(_)) => page::js(),
        // Every browser asks for it: that there is none is no error on the page.
        ("/favicon.ico", _) => HttpResponse::NoContent().finish(),
        ("/job", Some(chief)) => told(routes.job(&newest(&chief))),
        ("/curves", Some(chief)) => told(routes.curves.of(&chief.curves(), Clone::clone)),
        ("/placement", Some(chief)) => told(routes.placement.of(&chief.placement(), Clone::clone)),
        ("/targets", Some(chief)) => {
            told(routes.targets.of(&newest(&chief), |job| targets::targets(job, &routes.address)))
        }
        ("/events", Some(chief)) => routes.events.answer(request, chief, routes),
        ("/save" | "/stop", Some(_)) if request.method() != Method::POST => wrong_method("POST"),
        ("/save", Some(chief)) => {
            wishes::answer(request, body, routes.token.as_ref(), &chief, |_| Wish::Save).await
        }
        ("/stop", Some(chief)) => {
            let stop = |reason| Wish::Stop { reason };
            wishes::answer(request, body, routes.token.as_ref(), &chief, stop).await
        }
        _ => refusal(StatusCode::NOT_FOUND, "there is nothing here: / tells what there is"),
    }
}

fn wrong_method(right: &'static str) -> HttpResponse {
    let mut answer = refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("only {right} is answered here"));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(right));
    answer
}

/// Why a request is not answered.
pub(super) fn refusal(status: StatusCode, reason: &str) -> HttpResponse {
    HttpResponse::build(status).json(serde_json::json!({ "error": reason }))
}

fn newest(chief: &ChiefView) -> Arc<ChiefSnapshot> {
    Arc::clone(&chief.snapshots().borrow())
}

fn told(json: Bytes) -> HttpResponse {
    shared("application/json", json)
}

fn index(about: &About) -> HttpResponse {
    let mut text = format!("pushpull: {}\n\n", about.tasks().join(", "));
    for (path, what) in INDEX {
        text += &format!("{path:10} {what}\n");
    }
    text += "\nThe job's page is at its chief, which logs where.\n";
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(text)
}
