//! A pretend cardano-node on pallas: it answers local state queries with the bytes that commands gave.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use pallas_codec::minicbor;
use pallas_codec::utils::AnyCbor;
use pallas_network::facades::NodeServer;
use pallas_network::miniprotocols::localstate::ClientQueryRequest;
use serde_json::json;
use tokio::io::{BufReader, Lines, Stdin};
use tokio::net::UnixListener;

use crate::{Failure, say, text_of};

type Answers = Arc<Mutex<HashMap<Vec<u8>, AnyCbor>>>;

/// Commands: `answer QUERY ANSWER`, both in hexadecimal digits.
pub async fn state_server(
    socket: &str,
    magic: u64,
    mut commands: Lines<BufReader<Stdin>>,
) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket)?;
    let answers = Answers::default();
    let serving = answers.clone();
    tokio::spawn(async move {
        loop {
            match NodeServer::accept(&listener, magic).await {
                Ok(server) => {
                    say(json!({"event": "connected", "version": format!("{:?}", server.accepted_version())}));
                    tokio::spawn(serve(server, serving.clone()));
                }
                Err(failure) => say(json!({"event": "not-accepted", "text": failure.to_string()})),
            }
        }
    });
    say(json!({"event": "listening"}));
    while let Some(line) = commands.next_line().await? {
        let words: Vec<&str> = line.split(' ').collect();
        let ["answer", query, answer] = words.as_slice() else {
            return Err(format!("unknown command {line}").into());
        };
        let answer: AnyCbor = minicbor::decode(&hex::decode(answer)?)?;
        answers.lock().unwrap().insert(hex::decode(query)?, answer);
        say(json!({"event": "will-answer"}));
    }
    Ok(())
}

async fn serve(mut server: NodeServer, answers: Answers) {
    let text = match converse(&mut server, &answers).await {
        Ok(()) => "done".to_string(),
        Err(failure) => failure,
    };
    say(json!({"event": "ended", "text": text}));
    server.abort().await;
}

async fn converse(server: &mut NodeServer, answers: &Answers) -> Result<(), String> {
    let talk = server.statequery();
    while talk.recv_while_idle().await.map_err(text_of)?.is_some() {
        talk.send_acquired().await.map_err(text_of)?;
        loop {
            match talk.recv_while_acquired().await.map_err(text_of)? {
                ClientQueryRequest::Query(query) => {
                    let asked = query.raw_bytes().to_vec();
                    say(json!({"event": "asked", "query": hex::encode(&asked)}));
                    let answer = answers.lock().unwrap().get(&asked).cloned();
                    let answer = answer.ok_or_else(|| format!("no answer to {}", hex::encode(&asked)))?;
                    talk.send_result(answer).await.map_err(text_of)?;
                }
                ClientQueryRequest::ReAcquire(_) => talk.send_acquired().await.map_err(text_of)?,
                ClientQueryRequest::Release => {
                    say(json!({"event": "released"}));
                    break;
                }
            }
        }
    }
    Ok(())
}
