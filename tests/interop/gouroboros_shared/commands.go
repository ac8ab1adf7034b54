package shared

import (
	"fmt"
	"os"
	"strconv"

	"github.com/blinklabs-io/gouroboros/protocol"
)

// Library is what differs between the two versions.
type Library struct {
	Key           MessageKey
	LocalVersions func(magic uint32) protocol.ProtocolVersionMap
	NodeVersions  func(magic uint32, initiatorOnly bool) protocol.ProtocolVersionMap
	AnswerLocal   func(magic uint32) Shake
	AnswerNode    func(magic uint32) Shake
}

// Run does what the command line says: ROLE MAGIC [SOCKET or ADDRESS].
func Run(library Library) {
	if len(os.Args) < 3 {
		Fail(fmt.Errorf("usage: %s ROLE MAGIC [PLACE]", os.Args[0]))
	}
	number, err := strconv.ParseUint(os.Args[2], 10, 32)
	if err != nil {
		Fail(err)
	}
	magic := uint32(number)
	place := ""
	if len(os.Args) > 3 {
		place = os.Args[3]
	}
	switch os.Args[1] {
	case "local-client":
		LocalClient(place, Propose(library.LocalVersions(magic)))
	case "local-server":
		LocalServer(place, library.AnswerLocal(magic))
	case "local-server-own-handshake":
		LocalServer(place, Answer(library.LocalVersions(magic)))
	case "supply":
		Supply(place, Propose(library.NodeVersions(magic, true)), library.Key, SupplyOptions{})
	case "supply-eagerly":
		Supply(place, Propose(library.NodeVersions(magic, true)), library.Key, SupplyOptions{Eager: true})
	case "supply-and-pull":
		Supply(place, Propose(library.NodeVersions(magic, false)), library.Key, SupplyOptions{AlsoPulls: true})
	case "pull":
		Pull(library.AnswerNode(magic))
	case "verify":
		Verify()
	default:
		Fail(fmt.Errorf("unknown role %s", os.Args[1]))
	}
}
