package shared

import (
	"errors"
	"io"
	"log/slog"
	"net"

	"github.com/blinklabs-io/gouroboros/cbor"
	"github.com/blinklabs-io/gouroboros/connection"
	"github.com/blinklabs-io/gouroboros/muxer"
	"github.com/blinklabs-io/gouroboros/protocol"
	pcommon "github.com/blinklabs-io/gouroboros/protocol/common"
	"github.com/blinklabs-io/gouroboros/protocol/handshake"
)

const handshakeNumber = 0

// Link is one connection whose handshake is done. Protocols are made from Options; Run lets them read.
type Link struct {
	Options protocol.ProtocolOptions
	mux     *muxer.Muxer
	mode    muxer.DiffusionMode
}

// Shake performs a handshake and returns the version that was agreed.
type Shake func(options protocol.ProtocolOptions) (uint16, error)

// After a failed handshake the connection is closed, as the library's own connections are.
func newLink(conn net.Conn, mode protocol.ProtocolMode, server bool, shake Shake) (*Link, error) {
	mux := muxer.New(conn)
	link := &Link{mux: mux, mode: muxer.DiffusionModeInitiator}
	link.Options = protocol.ProtocolOptions{
		ConnectionId: connection.ConnectionId{LocalAddr: conn.LocalAddr(), RemoteAddr: conn.RemoteAddr()},
		Muxer:        mux,
		Logger:       slog.New(slog.NewTextHandler(io.Discard, nil)),
		ErrorChan:    make(chan error, 10),
		Mode:         mode,
		Role:         protocol.ProtocolRoleClient,
	}
	if server {
		link.mode = muxer.DiffusionModeResponder
		link.Options.Role = protocol.ProtocolRoleServer
	}
	version, err := shake(link.Options)
	if err != nil {
		mux.Stop()
		return nil, err
	}
	link.Options.Version = version
	Say("connected", Event{"version": version})
	return link, nil
}

// BothWays lets the peer open protocols too. To be called before Run.
func (link *Link) BothWays() {
	link.mode = muxer.DiffusionModeInitiatorAndResponder
}

// Run starts reading, and says why the connection ended when it does.
func (link *Link) Run() {
	link.mux.SetDiffusionMode(link.mode)
	link.mux.Start()
	go func() {
		select {
		case err, ok := <-link.mux.ErrorChan():
			text := "closed"
			if ok {
				text = err.Error()
			}
			Say("ended", Event{"text": text})
		case err := <-link.Options.ErrorChan:
			Say("ended", Event{"text": err.Error()})
			link.mux.Stop()
		}
	}()
}

// Propose is the library's own handshake, as initiator.
func Propose(versions protocol.ProtocolVersionMap) Shake {
	return func(options protocol.ProtocolOptions) (uint16, error) {
		return libraryHandshake(options, versions, func(both *handshake.Handshake) { both.Client.Start() })
	}
}

// Answer is the library's own handshake, as responder.
func Answer(versions protocol.ProtocolVersionMap) Shake {
	return func(options protocol.ProtocolOptions) (uint16, error) {
		return libraryHandshake(options, versions, func(both *handshake.Handshake) { both.Server.Start() })
	}
}

func libraryHandshake(
	options protocol.ProtocolOptions,
	versions protocol.ProtocolVersionMap,
	start func(*handshake.Handshake),
) (uint16, error) {
	agreed := make(chan uint16, 1)
	config := handshake.NewConfig(
		handshake.WithProtocolVersionMap(versions),
		handshake.WithFinishedFunc(
			func(_ handshake.CallbackContext, version uint16, _ protocol.VersionData) error {
				agreed <- version
				return nil
			},
		),
	)
	start(handshake.New(options, &config))
	options.Muxer.StartOnce()
	select {
	case version := <-agreed:
		return version, nil
	case err := <-options.ErrorChan:
		return 0, err
	case err, ok := <-options.Muxer.ErrorChan():
		if !ok {
			return 0, errors.New("closed")
		}
		return 0, err
	}
}

// AnswerPlainly accepts the highest proposed version that has data here. The library's own handshake knows Cardano's
// versions only, and whoever runs its packages over the muxer may shake hands as they like.
func AnswerPlainly(versions protocol.ProtocolVersionMap) Shake {
	return func(options protocol.ProtocolOptions) (uint16, error) {
		send, receive, _ := options.Muxer.RegisterProtocol(handshakeNumber, muxer.ProtocolRoleResponder)
		options.Muxer.StartOnce()
		segment, ok := <-receive
		if !ok {
			return 0, errors.New("closed before a proposal came")
		}
		message, err := handshake.NewMsgFromCbor(handshake.MessageTypeProposeVersions, segment.Payload)
		if err != nil {
			return 0, err
		}
		var chosen uint16
		for version := range message.(*handshake.MsgProposeVersions).VersionMap {
			if _, known := versions[version]; known && version > chosen {
				chosen = version
			}
		}
		if chosen == 0 {
			return 0, errors.New("no common version")
		}
		answer, err := cbor.Encode(handshake.NewMsgAcceptVersion(chosen, versions[chosen]))
		if err != nil {
			return 0, err
		}
		send <- muxer.NewSegment(handshakeNumber, answer, true)
		return chosen, nil
	}
}

// Nothing is judged here: the other side's judgement is what is tested.
func noChecks() (*pcommon.MessageAuthenticator, *pcommon.TTLValidator) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	return pcommon.NewNoOpAuthenticator(quiet), pcommon.NewNoOpTTLValidator(quiet)
}
