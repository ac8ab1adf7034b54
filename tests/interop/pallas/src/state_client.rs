//! A local state query client on pallas: it asks what a DMQ node asks, and says how it reads the answers.

use pallas_codec::minicbor;
use pallas_codec::utils::AnyCbor;
use pallas_network::facades::NodeClient;
use pallas_network::miniprotocols::localstate::queries_v16::{
    self, HardForkQuery, LedgerQuery, Request, SystemStart,
};
use pallas_network::miniprotocols::localtxsubmission::SMaybe;
use serde_json::json;
use tokio::io::{BufReader, Lines, Stdin};

use crate::{Failure, say};

/// Commands: `round`, all questions on one acquired state; `again`, the same after ReAcquire; `done`.
pub async fn state_client(
    socket: &str,
    magic: u64,
    mut commands: Lines<BufReader<Stdin>>,
) -> Result<(), Failure> {
    let mut node = NodeClient::connect(socket, magic).await?;
    say(json!({"event": "connected"}));
    while let Some(line) = commands.next_line().await? {
        let talk = node.statequery();
        match line.as_str() {
            "round" => talk.acquire(None).await?,
            "again" => {
                talk.acquire(None).await?;
                talk.send_reacquire(None).await?;
                talk.recv_while_acquiring().await?;
            }
            "done" => {
                talk.send_done().await?;
                say(json!({"event": "said-goodbye"}));
                continue;
            }
            _ => return Err(format!("unknown command {line}").into()),
        }
        round(&mut node).await?;
        node.statequery().send_release().await?;
    }
    Ok(())
}

async fn round(node: &mut NodeClient) -> Result<(), Failure> {
    let talk = node.statequery();
    let start: SystemStart = queries_v16::get_system_start(talk).await?;
    let era = queries_v16::get_current_era(talk).await?;
    let epoch = queries_v16::get_block_epoch_number(talk, era).await?;
    let history = Request::LedgerQuery(LedgerQuery::HardForkQuery(HardForkQuery::GetInterpreter));
    let history: AnyCbor = talk.query(history).await?;
    let genesis = queries_v16::get_genesis_config(talk, era).await?;
    let stake = queries_v16::get_stake_snapshots(talk, era, SMaybe::None).await?;
    let pools: serde_json::Map<String, serde_json::Value> = stake
        .stake_snapshots
        .iter()
        .map(|(pool, one)| {
            let stakes = [one.snapshot_mark_pool, one.snapshot_set_pool, one.snapshot_go_pool];
            (hex::encode(pool.as_slice()), json!(stakes))
        })
        .collect();
    say(json!({
        "event": "read",
        "start": hex::encode(minicbor::to_vec(&start)?),
        "era": era,
        "epoch": epoch,
        "history": hex::encode(history.raw_bytes()),
        "magic": genesis.network_magic,
        "slots_per_kes_period": genesis.slots_per_kes_period,
        "max_kes_evolutions": genesis.max_kes_evolutions,
        "pools": pools,
        "totals": [stake.snapshot_stake_mark_total, stake.snapshot_stake_set_total, stake.snapshot_stake_go_total],
    }));
    Ok(())
}
