// A DMQ peer on a current gouroboros: numbers 11, 14 and 15, DMQ's own handshake versions.
package main

import (
	"os"
	"strconv"

	"github.com/blinklabs-io/gouroboros/protocol"
	pcommon "github.com/blinklabs-io/gouroboros/protocol/common"
	shared "stagepost.test/interop/gouroboros_shared"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "verify-file" {
		messageBytes, err := strconv.Atoi(os.Args[3])
		if err != nil {
			shared.Fail(err)
		}
		verifyFile(os.Args[2], messageBytes)
		return
	}
	shared.Run(shared.Library{
		Key:           func(message *pcommon.DmqMessage) []byte { return message.ID() },
		LocalVersions: localVersions,
		NodeVersions:  firstNodeVersion,
		AnswerLocal:   func(magic uint32) shared.Shake { return shared.Answer(localVersions(magic)) },
		AnswerNode:    func(magic uint32) shared.Shake { return shared.Answer(firstNodeVersion(magic, true)) },
	})
}

func localVersions(magic uint32) protocol.ProtocolVersionMap {
	return protocol.GetProtocolVersionMapDMQNtC(magic, protocol.QueryModeDisabled)
}

// In its second version the library's responder pulls, everybody else's initiator does.
func firstNodeVersion(magic uint32, initiatorOnly bool) protocol.ProtocolVersionMap {
	versions := protocol.GetProtocolVersionMapDMQNtN(magic, initiatorOnly, false, protocol.QueryModeDisabled)
	delete(versions, protocol.ProtocolVersionDMQNtN2)
	return versions
}
