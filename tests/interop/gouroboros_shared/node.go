package shared

import (
	"encoding/hex"
	"fmt"
	"net"
	"sync"

	"github.com/blinklabs-io/gouroboros/protocol"
	pcommon "github.com/blinklabs-io/gouroboros/protocol/common"
	"github.com/blinklabs-io/gouroboros/protocol/keepalive"
	"github.com/blinklabs-io/gouroboros/protocol/messagesubmission"
)

const idsPerRequest = 10

// MessageKey gives the id of a message as announced; the two versions of the library keep it in different places.
type MessageKey func(*pcommon.DmqMessage) []byte

// SupplyOptions say how a supplier behaves.
type SupplyOptions struct {
	// AlsoPulls uses the connection both ways: the node opens an instance of its own on it.
	AlsoPulls bool
	// Eager answers every request with what there is, as a supplier should. The library then forgets ids that are not
	// acknowledged yet, so the patient way is to give ids in answer to blocking requests only.
	Eager bool
}

// Supply dials a node and supplies it with messages. Commands: `add HEX`, and `begin` to connect.
func Supply(address string, shake Shake, key MessageKey, options SupplyOptions) {
	supplier := &supplier{key: key, eager: options.Eager, held: map[string]*pcommon.DmqMessage{}}
	supplier.added = sync.NewCond(&supplier.lock)
	Commands(func(words []string) error {
		switch words[0] {
		case "begin":
			return supplier.begin(address, shake, options.AlsoPulls)
		case "add":
			message, err := decode(words[1])
			if err == nil {
				supplier.add(message)
			}
			return err
		}
		return fmt.Errorf("unknown command %s", words[0])
	})
}

type supplier struct {
	key   MessageKey
	eager bool
	lock  sync.Mutex
	added *sync.Cond
	fresh []*pcommon.DmqMessage
	held  map[string]*pcommon.DmqMessage
}

func (supplier *supplier) begin(address string, shake Shake, alsoPulls bool) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	link, err := newLink(conn, protocol.ProtocolModeNodeToNode, false, shake)
	if err != nil {
		Fail(err)
	}
	authenticator, validator := noChecks()
	config := messagesubmission.NewConfig(
		messagesubmission.WithAuthenticator(authenticator),
		messagesubmission.WithTTLValidator(validator),
		messagesubmission.WithRequestMessageIdsFunc(supplier.requestIds),
		messagesubmission.WithRequestMessagesFunc(supplier.requestMessages),
	)
	client := messagesubmission.NewClient(link.Options, &config)
	client.Start()
	if alsoPulls {
		link.BothWays()
		go preparePull(link)()
	}
	link.Run()
	return client.Init()
}

func (supplier *supplier) add(message *pcommon.DmqMessage) {
	supplier.lock.Lock()
	defer supplier.lock.Unlock()
	supplier.fresh = append(supplier.fresh, message)
	supplier.held[string(supplier.key(message))] = message
	supplier.added.Broadcast()
}

// A blocking request is answered in a goroutine of its own, for the library's reader must not wait until there is news.
// Any other is answered at once: what the node asked for behind it must not be answered before it.
func (supplier *supplier) requestIds(
	context messagesubmission.CallbackContext, blocking bool, acknowledged, requested uint16,
) {
	Say("ids-asked", Event{"blocking": blocking, "acknowledged": acknowledged, "requested": requested})
	reply := func() {
		var err error
		if blocking || supplier.eager {
			err = context.Client.ReplyMessageIds(supplier.next(blocking, int(requested)))
		} else {
			// Past ReplyMessageIds, which would forget what was announced before.
			nothing := messagesubmission.NewMsgReplyMessageIds([]pcommon.MessageIDAndSize{})
			err = context.Client.SendMessage(nothing)
		}
		if err != nil {
			Say("send-failed", Event{"text": err.Error()})
		}
	}
	if blocking {
		go reply()
	} else {
		reply()
	}
}

func (supplier *supplier) next(blocking bool, requested int) []pcommon.MessageIDAndSize {
	supplier.lock.Lock()
	defer supplier.lock.Unlock()
	for blocking && len(supplier.fresh) == 0 {
		supplier.added.Wait()
	}
	count := min(requested, len(supplier.fresh))
	ids := make([]pcommon.MessageIDAndSize, 0, count)
	for _, message := range supplier.fresh[:count] {
		size := len(encoded(message)) / 2
		ids = append(ids, pcommon.MessageIDAndSize{MessageID: supplier.key(message), SizeInBytes: uint32(size)})
	}
	supplier.fresh = supplier.fresh[count:]
	return ids
}

func (supplier *supplier) requestMessages(context messagesubmission.CallbackContext, ids [][]byte) {
	supplier.lock.Lock()
	defer supplier.lock.Unlock()
	messages := []pcommon.DmqMessage{}
	for _, id := range ids {
		if message := supplier.held[string(id)]; message != nil {
			messages = append(messages, *message)
		}
	}
	Say("messages-asked", Event{"count": len(ids)})
	if err := context.Client.ReplyMessages(messages); err != nil {
		Say("send-failed", Event{"text": err.Error()})
	}
}

// Pull waits for a node to dial and pulls everything that it has.
func Pull(shake Shake) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		Fail(err)
	}
	Say("listening", Event{"port": listener.Addr().(*net.TCPAddr).Port})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				Fail(err)
			}
			go pullFrom(conn, shake)
		}
	}()
	Commands(func(words []string) error { return fmt.Errorf("unknown command %s", words[0]) })
}

func pullFrom(conn net.Conn, shake Shake) {
	link, err := newLink(conn, protocol.ProtocolModeNodeToNode, true, shake)
	if err != nil {
		Say("not-connected", Event{"text": err.Error()})
		return
	}
	pull := preparePull(link)
	link.Run()
	pull()
}

// preparePull registers the protocols that the peer opens, and returns the loop that pulls until the end.
func preparePull(link *Link) func() {
	announced := make(chan []pcommon.MessageIDAndSize, 1)
	received := make(chan []pcommon.DmqMessage, 1)
	authenticator, validator := noChecks()
	config := messagesubmission.NewConfig(
		messagesubmission.WithAuthenticator(authenticator),
		messagesubmission.WithTTLValidator(validator),
		messagesubmission.WithReplyMessageIdsFunc(
			func(_ messagesubmission.CallbackContext, ids []pcommon.MessageIDAndSize) { announced <- ids },
		),
		messagesubmission.WithReplyMessagesFunc(
			func(_ messagesubmission.CallbackContext, messages []pcommon.DmqMessage) { received <- messages },
		),
	)
	server := messagesubmission.NewServer(link.Options, &config)
	server.Start()
	keepAliveConfig := keepalive.NewConfig()
	keepalive.NewServer(link.Options, &keepAliveConfig).Start()
	return func() { pullAll(server, announced, received) }
}

func pullAll(
	server *messagesubmission.Server,
	announced <-chan []pcommon.MessageIDAndSize,
	received <-chan []pcommon.DmqMessage,
) {
	var acknowledged uint16
	for {
		// Queued by the library until the peer has said Init, or has answered the request before.
		if err := server.RequestMessageIdsBlocking(acknowledged, idsPerRequest); err != nil {
			Say("send-failed", Event{"text": err.Error()})
			return
		}
		ids := <-announced
		Say("ids", Event{"count": len(ids), "sizes": sizesOf(ids)})
		acknowledged = uint16(len(ids))
		if len(ids) == 0 {
			continue
		}
		wanted := make([][]byte, 0, len(ids))
		for _, id := range ids {
			wanted = append(wanted, id.MessageID)
		}
		if err := server.RequestMessages(wanted); err != nil {
			Say("send-failed", Event{"text": err.Error()})
			return
		}
		Say("messages", Event{"messages": encodedAll(<-received)})
	}
}

func sizesOf(ids []pcommon.MessageIDAndSize) map[string]uint32 {
	sizes := make(map[string]uint32, len(ids))
	for _, id := range ids {
		sizes[hex.EncodeToString(id.MessageID)] = id.SizeInBytes
	}
	return sizes
}
