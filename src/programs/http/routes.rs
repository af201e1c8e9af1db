//! Contains the table that maps each request to its response, and sets the headers of every response. This
//! module must not depend on sockets or on tasks.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use actix_web::http::header::{self, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use pushpull_chief::{ChiefView, Command};
use pushpull_messages::observe::{ChiefSnapshot, CurvePoint, PlacementRow};
use tracing::Instrument;

use super::about::About;
use super::access::Access;
use super::actors::actors;
use super::answers::{refusal, told, wrong_method};
use super::connections::Place;
use super::events::{Events, Source};
use super::rendered::{JobText, Rendered, json};
use super::views::Views;
use super::{control, health, login, metrics, page, targets};
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
    views: Views,
    pub(super) access: Access,
    about: About,
    log: Log,
    /// The endpoint's own address, as the chief lists it.
    address: String,
    /// True if the process makes the certificates of the job's tasks.
    certifies: bool,
    job: Arc<JobText>,
    curves: Rendered<Vec<CurvePoint>>,
    placement: Rendered<Vec<PlacementRow>>,
    targets: Rendered<ChiefSnapshot>,
    events: Events,
}

impl Routes {
    pub(super) fn new(
        views: Views,
        access: Access,
        about: About,
        log: Log,
        address: String,
        certifies: bool,
    ) -> Self {
        Self {
            job: Arc::new(JobText::new(access.has_token(), views.exposure().clone())),
            views,
            access,
            about,
            log,
            address,
            certifies,
            curves: Rendered::default(),
            placement: Rendered::default(),
            targets: Rendered::default(),
            events: Events::default(),
        }
    }
}

/// Whether a connection has had a request. A client may send several at once, and after each answer the
/// connection would end, but the server's library handles what it has received already.
#[derive(Default)]
pub(super) struct FirstRequest(Cell<bool>);

/// Answers a request for any path.
pub(super) async fn serve(
    request: HttpRequest,
    body: web::Payload,
    routes: web::Data<Routes>,
) -> HttpResponse {
    if let Some(place) = request.conn_data::<Place>() {
        place.asks(Instant::now());
    }
    let is_first = request.conn_data::<FirstRequest>().is_none_or(|first| !first.0.replace(true));
    let mut answer = match is_first {
        true => {
            let answer = admit(&request, body, &routes).instrument(routes.log.span()).await;
            routes.access.count(&request, answer.status());
            answer
        }
        false => routes.access.refuse_second(&request),
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        // With `no-referrer`, a browser would send `Origin: null` with the form of the token.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Answers a request of a client that may make it, and refuses all others.
async fn admit(request: &HttpRequest, body: web::Payload, routes: &web::Data<Routes>) -> HttpResponse {
    let access = &routes.access;
    if let Err(refused) = access.check_host(request) {
        return *refused;
    }
    match request.path() {
        // Every browser requests this icon. With a 404 the browser would report an error of the page.
        "/favicon.ico" => return HttpResponse::NoContent().finish(),
        "/login.css" => return login::css(),
        "/login" if request.method() == Method::POST => {
            return login::enter(request, &mut body.into_inner(), access).await;
        }
        "/login" if reads(request) => return login::to_page(),
        "/login" => return wrong_method("GET, POST"),
        "/healthz" | "/readyz" if !access.reads_details(request) => {
            return health::brief(&answer(request, body, routes).await);
        }
        "/healthz" | "/readyz" => return answer(request, body, routes).await,
        _ => {}
    }
    match (request.path(), access.check_reading(request)) {
        (_, Ok(())) => answer(request, body, routes).await,
        ("/", Err(refused)) if login::wants_page(request) => login::form(*refused),
        (_, Err(refused)) => *refused,
    }
}

async fn answer(request: &HttpRequest, body: web::Payload, routes: &web::Data<Routes>) -> HttpResponse {
    let (path, views) = (request.path(), &routes.views);
    let chief = views.chief();
    let reads = reads(request);
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
        ("/metrics", _) => {
            metrics::answer(&views.seen().await, &routes.access, views.exposure().is_exposed())
        }
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
        ("/job", Some(chief)) => told(routes.job.of(&newest(&chief))),
        ("/curves", Some(chief)) => told(routes.curves.of(&chief.curves(), Clone::clone)),
        ("/placement", Some(chief)) => told(routes.placement.of(&chief.placement(), Clone::clone)),
        ("/targets", Some(chief)) => {
            let list = |job: &ChiefSnapshot| targets::targets(job, &routes.address, routes.certifies);
            told(routes.targets.of(&newest(&chief), list))
        }
        ("/events", Some(chief)) => {
            let (job, log) = (Arc::clone(&routes.job), Arc::clone(&routes.log.recent));
            let end = routes.access.reads_until(request);
            routes.events.answer(request, Source { chief, job, log }, end.map(Into::into))
        }
        ("/save" | "/stop", Some(_)) if request.method() != Method::POST => wrong_method("POST"),
        ("/save", Some(chief)) => {
            control::answer(request, body, &routes.access, &chief, |_| Command::Save).await
        }
        ("/stop", Some(chief)) => {
            let stop = |reason| Command::Stop { reason };
            control::answer(request, body, &routes.access, &chief, stop).await
        }
        _ => refusal(StatusCode::NOT_FOUND, "unknown path; open / to see what this endpoint serves"),
    }
}

/// Returns true if the request's method is one that changes nothing.
fn reads(request: &HttpRequest) -> bool {
    [Method::GET, Method::HEAD].contains(request.method())
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
