// A DMQ peer on the gouroboros that the documents describe: numbers 17, 18 and 19, run over its muxer, with Cardano's
// handshake versions where it proposes.
package main

import (
	"github.com/blinklabs-io/gouroboros/protocol"
	pcommon "github.com/blinklabs-io/gouroboros/protocol/common"
	"github.com/blinklabs-io/gouroboros/protocol/messagesubmission"
	shared "stagepost.test/interop/gouroboros_shared"
)

// DMQ's own versions, which this library does not know by name.
const (
	dmqClientVersion = 0x1001
	dmqNodeVersion   = 1
)

func main() {
	shared.Run(shared.Library{
		Key:           func(message *pcommon.DmqMessage) []byte { return message.Payload.MessageID },
		LocalVersions: cardanoLocalVersions,
		NodeVersions:  cardanoNodeVersions,
		AnswerLocal: func(magic uint32) shared.Shake {
			return shared.AnswerPlainly(protocol.ProtocolVersionMap{
				dmqClientVersion: protocol.VersionDataNtC15andUp{CborNetworkMagic: magic},
			})
		},
		AnswerNode: func(magic uint32) shared.Shake {
			data := protocol.VersionDataNtN11to12{
				CborNetworkMagic:                       magic,
				CborInitiatorAndResponderDiffusionMode: protocol.DiffusionModeInitiatorOnly,
			}
			return shared.AnswerPlainly(protocol.ProtocolVersionMap{
				dmqNodeVersion: protocol.VersionDataNtN13andUp{VersionDataNtN11to12: data},
			})
		},
	})
}

func cardanoLocalVersions(magic uint32) protocol.ProtocolVersionMap {
	return protocol.GetProtocolVersionMap(
		protocol.ProtocolModeNodeToClient, magic, protocol.DiffusionModeInitiatorOnly, false, false,
	)
}

// From version 15 on the library leaves out Init, which the documents have.
func cardanoNodeVersions(magic uint32, initiatorOnly bool) protocol.ProtocolVersionMap {
	versions := protocol.GetProtocolVersionMap(protocol.ProtocolModeNodeToNode, magic, initiatorOnly, false, false)
	for version := range versions {
		if version >= messagesubmission.MessageSubmissionV2MinVersion {
			delete(versions, version)
		}
	}
	return versions
}
