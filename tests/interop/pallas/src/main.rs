//! A DMQ peer on pallas, driven from a console: commands come in line by line, what happened goes out as one JSON
//! object per line. Usage: ROLE MAGIC SOCKET.

use std::sync::{Arc, Mutex};

use pallas_codec::minicbor;
use pallas_network::facades::{DmqClient, DmqServer};
use pallas_network::miniprotocols::localmsgnotification::{self, Request};
use pallas_network::miniprotocols::localmsgsubmission::{self, DmqMsg, DmqMsgRejectReason};
use pallas_network::miniprotocols::localtxsubmission::{self, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::net::UnixListener;
use tokio::sync::Notify;

mod state_client;
mod state_server;

type Failure = Box<dyn std::error::Error>;

fn say(event: Value) {
    println!("{event}");
}

fn decode(text: &str) -> Result<DmqMsg, Failure> {
    Ok(minicbor::decode(&hex::decode(text)?)?)
}

/// The library keeps no received bytes, so this is what it would forward.
fn encoded(message: &DmqMsg) -> Result<String, Failure> {
    Ok(hex::encode(minicbor::to_vec(message)?))
}

fn encoded_all(messages: &[DmqMsg]) -> Result<Vec<String>, Failure> {
    messages.iter().map(encoded).collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(failure) = run().await {
        say(json!({"event": "error", "text": failure.to_string()}));
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, role, magic, socket] = arguments.as_slice() else {
        return Err("usage: ROLE MAGIC SOCKET".into());
    };
    let magic: u64 = magic.parse()?;
    let commands = BufReader::new(tokio::io::stdin()).lines();
    match role.as_str() {
        "local-client" => local_client(socket, magic, commands).await,
        "local-server" => local_server(socket, magic, commands).await,
        "state-client" => state_client::state_client(socket, magic, commands).await,
        "state-server" => state_server::state_server(socket, magic, commands).await,
        _ => Err(format!("unknown role {role}").into()),
    }
}

/// Commands: `submit HEX`, `ask-blocking`, `ask`, `done`.
async fn local_client(
    socket: &str,
    magic: u64,
    mut commands: Lines<BufReader<Stdin>>,
) -> Result<(), Failure> {
    let mut client = DmqClient::connect(socket, magic).await?;
    say(json!({"event": "connected"}));
    while let Some(line) = commands.next_line().await? {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("submit", text) => {
                let event = match client.msg_submission().submit_tx(decode(text)?).await? {
                    Response::Accepted => json!({"event": "accepted"}),
                    Response::Rejected(error) => rejected(error.0),
                };
                say(event);
            }
            (asked @ ("ask" | "ask-blocking"), _) => {
                let notification = client.msg_notification();
                if asked == "ask" {
                    notification.send_request_messages_non_blocking().await?;
                } else {
                    notification.send_request_messages_blocking().await?;
                }
                let localmsgnotification::Reply(messages, more) = notification.recv_next_reply().await?;
                say(json!({"event": "messages", "messages": encoded_all(&messages)?, "more": more}));
            }
            ("done", _) => {
                client.msg_submission().terminate_gracefully().await?;
                client.msg_notification().send_done().await?;
                say(json!({"event": "said-goodbye"}));
            }
            (unknown, _) => return Err(format!("unknown command {unknown}").into()),
        }
    }
    Ok(())
}

fn rejected(reason: DmqMsgRejectReason) -> Value {
    let (number, text) = match reason {
        DmqMsgRejectReason::Invalid(text) => (0, text),
        DmqMsgRejectReason::AlreadyReceived => (1, String::new()),
        DmqMsgRejectReason::Expired => (2, String::new()),
        DmqMsgRejectReason::Other(text) => (3, text),
    };
    json!({"event": "rejected", "reason": number, "text": text})
}

/// What servers answer with, as commands set it: `add HEX`, `answer accept`, `answer invalid TEXT`,
/// `answer received`, `answer expired`, `answer other TEXT`. Every program is told of every message.
#[derive(Default)]
struct Orders {
    refusal: Mutex<Option<DmqMsgRejectReason>>,
    messages: Mutex<Vec<DmqMsg>>,
    added: Notify,
}

impl Orders {
    fn follow(&self, line: &str) -> Result<(), Failure> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        if command == "add" {
            self.messages.lock().unwrap().push(decode(rest)?);
            self.added.notify_waiters();
            return Ok(());
        }
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        *self.refusal.lock().unwrap() = match (command, name) {
            ("answer", "accept") => None,
            ("answer", "invalid") => Some(DmqMsgRejectReason::Invalid(text.into())),
            ("answer", "received") => Some(DmqMsgRejectReason::AlreadyReceived),
            ("answer", "expired") => Some(DmqMsgRejectReason::Expired),
            ("answer", "other") => Some(DmqMsgRejectReason::Other(text.into())),
            _ => return Err(format!("unknown command {line}").into()),
        };
        say(json!({"event": "will-answer"}));
        Ok(())
    }

    /// Messages behind the first `told` ones.
    fn after(&self, told: usize) -> Vec<DmqMsg> {
        self.messages.lock().unwrap()[told..].to_vec()
    }
}

async fn local_server(
    socket: &str,
    magic: u64,
    mut commands: Lines<BufReader<Stdin>>,
) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket)?;
    say(json!({"event": "listening"}));
    let orders = Arc::new(Orders::default());
    let serving = orders.clone();
    tokio::spawn(async move {
        loop {
            match DmqServer::accept(&listener, magic).await {
                Ok(server) => {
                    say(json!({"event": "connected"}));
                    tokio::spawn(serve(server, serving.clone()));
                }
                Err(failure) => say(json!({"event": "not-connected", "text": failure.to_string()})),
            }
        }
    });
    while let Some(line) = commands.next_line().await? {
        orders.follow(&line)?;
    }
    Ok(())
}

async fn serve(mut server: DmqServer, orders: Arc<Orders>) {
    let text = match converse(&mut server, &orders).await {
        Ok(()) => "done".to_string(),
        Err(failure) => failure,
    };
    say(json!({"event": "ended", "text": text}));
    server.abort().await;
}

async fn converse(server: &mut DmqServer, orders: &Orders) -> Result<(), String> {
    let mut told = 0;
    let mut waits = false;
    loop {
        let added = orders.added.notified();
        let fresh = orders.after(told);
        if waits && !fresh.is_empty() {
            told += fresh.len();
            waits = false;
            server
                .msg_notification
                .send_reply_messages_blocking(fresh)
                .await
                .map_err(text_of)?;
        }
        tokio::select! {
            () = added => {}
            request = server.msg_submission.recv_next_request() => {
                let localtxsubmission::Request::Submit(message) = request.map_err(text_of)? else {
                    return Ok(());
                };
                say(json!({"event": "submitted", "message": encoded(&message).map_err(text_of)?}));
                let refusal = orders.refusal.lock().unwrap().clone();
                let response = match refusal {
                    None => Response::Accepted,
                    Some(reason) => Response::Rejected(localmsgsubmission::DmqMsgValidationError(reason)),
                };
                server.msg_submission.send_submit_tx_response(response).await.map_err(text_of)?;
            }
            request = server.msg_notification.recv_next_request(), if !waits => {
                if matches!(request.map_err(text_of)?, Request::Blocking) {
                    waits = true;
                    continue;
                }
                let fresh = orders.after(told);
                told += fresh.len();
                server.msg_notification.send_reply_messages_non_blocking(fresh, false).await.map_err(text_of)?;
            }
        }
    }
}

fn text_of(failure: impl std::fmt::Display) -> String {
    failure.to_string()
}
