//! Contains the table that maps each request to its response, and sets the headers of every response. This
//! module must not depend on sockets or on tasks.

use std::sync::Arc;
use std::time::Instant;

use actix_web::http::header::{self, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use pushpull_chief::{ChiefView, Command};
use pushpull_messages::observe::{ChiefSnapshot, CurvePoint, PlacementRow};
use tracing::Instrument;

use super::about::About;
use super::actors::actors;
use super::answers::{refusal, told, wrong_method};
use super::connections::Place;
use super::events::{Events, Source};
use super::host::is_loopback;
use super::rendered::{JobText, Rendered, json};
use super::token::Token;
use super::views::Views;
use super::{control, health, metrics, page, targets};
use crate::programs::logging::Log;

/// The content security policy: a page loads nothing from other servers, and no other page may embed it in a
/// frame.
const POLICY: &str = include_str!("page/policy.txt").trim_ascii_end();

/// The paths that every process answers. `/` lists them if the process has no page.
const INDEX: &[(&str, &str)] = &[
    ("/metrics", "metrics for Prometheus"),
    ("/actors", "every actor: its state, its queue, its times"),
    ("/tasks", "the snapshots of this process's tasks"),
    ("/healthz", "whether the tasks are alive"),
    ("/readyz", "whether the tasks can do their work"),
    ("/config", "how this process was started"),
    ("/log", "the last log lines"),
];

/// The data from which requests are answered.
pub(super) struct Routes {
    pub views: Views,
    token: Option<Token>,
    about: About,
    log: Log,
    /// True if the endpoint listens at a loopback address, so that only this machine can reach it.
    is_local: bool,
    /// The endpoint's own address.
    address: String,
    job: Arc<JobText>,
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
        log: Log,
        is_local: bool,
        address: String,
    ) -> Self {
        Self {
            views,
            job: Arc::new(JobText::new(token.is_some())),
            token,
            about,
            log,
            is_local,
            address,
            curves: Rendered::default(),
            placement: Rendered::default(),
            targets: Rendered::default(),
            events: Events::default(),
        }
    }
}

/// Answers a request for any path.
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
        None => answer(&request, body, &routes).instrument(routes.log.span()).await,
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
        let reason = "this endpoint answers only requests to localhost: use localhost, or start the task with a different --http-addr";
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
            wrong_method(&Method::GET)
        }
        ("/job" | "/curves" | "/placement" | "/targets" | "/events" | "/page.css" | "/page.js", Some(_))
            if !reads =>
        {
            wrong_method(&Method::GET)
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
        ("/log", _) => told(json(&routes.log.recent.lines())),
        ("/", Some(_)) => page::index(),
        ("/", None) => index(&routes.about),
        ("/page.css", Some(_)) => page::css(),
        ("/page.js", Some(_)) => page::js(),
        // Every browser requests this icon. With a 404 the browser would report an error of the page.
        ("/favicon.ico", _) => HttpResponse::NoContent().finish(),
        ("/job", Some(chief)) => told(routes.job.of(&newest(&chief))),
        ("/curves", Some(chief)) => told(routes.curves.of(&chief.curves(), Clone::clone)),
        ("/placement", Some(chief)) => told(routes.placement.of(&chief.placement(), Clone::clone)),
        ("/targets", Some(chief)) => {
            told(routes.targets.of(&newest(&chief), |job| targets::targets(job, &routes.address)))
        }
        ("/events", Some(chief)) => {
            let (job, log) = (Arc::clone(&routes.job), Arc::clone(&routes.log.recent));
            routes.events.answer(request, Source { chief, job, log })
        }
        ("/save" | "/stop", Some(_)) if request.method() != Method::POST => wrong_method(&Method::POST),
        ("/save", Some(chief)) => {
            control::answer(request, body, routes.token.as_ref(), &chief, |_| Command::Save).await
        }
        ("/stop", Some(chief)) => {
            let stop = |reason| Command::Stop { reason };
            control::answer(request, body, routes.token.as_ref(), &chief, stop).await
        }
        _ => refusal(StatusCode::NOT_FOUND, "unknown path; open / to see what this endpoint serves"),
    }
}

fn newest(chief: &ChiefView) -> Arc<ChiefSnapshot> {
    Arc::clone(&chief.snapshots().borrow())
}

fn index(about: &About) -> HttpResponse {
    let mut text = format!("pushpull: {}\n\n", about.tasks().join(", "));
    for (path, what) in INDEX {
        text += &format!("{path:10} {what}\n");
    }
    text += "\nThe chief serves the job's page; the page's address is in the chief's log.\n";
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(text)
}
