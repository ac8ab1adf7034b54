package shared

import (
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/blinklabs-io/gouroboros/protocol"
	pcommon "github.com/blinklabs-io/gouroboros/protocol/common"
	"github.com/blinklabs-io/gouroboros/protocol/localmessagenotification"
	"github.com/blinklabs-io/gouroboros/protocol/localmessagesubmission"
)

// LocalClient connects to a node's socket. Commands: `submit HEX`, `ask-blocking`, `ask`, `done`.
func LocalClient(path string, shake Shake) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		Fail(err)
	}
	link, err := newLink(conn, protocol.ProtocolModeNodeToClient, false, shake)
	if err != nil {
		Fail(err)
	}
	authenticator, validator := noChecks()
	submissionConfig := localmessagesubmission.NewConfig(
		localmessagesubmission.WithAuthenticator(authenticator),
		localmessagesubmission.WithTTLValidator(validator),
		localmessagesubmission.WithAcceptMessageFunc(
			func(localmessagesubmission.CallbackContext) { Say("accepted", nil) },
		),
		localmessagesubmission.WithRejectMessageFunc(
			func(_ localmessagesubmission.CallbackContext, reason pcommon.RejectReason) {
				Say("rejected", Event{"reason": reason.RejectReasonType(), "text": textOf(reason)})
			},
		),
	)
	notificationConfig := localmessagenotification.NewConfig(
		localmessagenotification.WithAuthenticator(authenticator),
		localmessagenotification.WithTTLValidator(validator),
		localmessagenotification.WithReplyMessagesFunc(
			func(_ localmessagenotification.CallbackContext, messages []pcommon.DmqMessage, more bool) {
				Say("messages", Event{"messages": encodedAll(messages), "more": more})
			},
		),
	)
	submission := localmessagesubmission.NewClient(link.Options, &submissionConfig)
	notification := localmessagenotification.NewClient(link.Options, &notificationConfig)
	submission.Start()
	notification.Start()
	link.Run()
	Commands(func(words []string) error {
		switch words[0] {
		case "submit":
			message, err := decode(words[1])
			if err != nil {
				return err
			}
			return submission.SubmitMessage(message)
		case "ask-blocking":
			return notification.RequestMessagesBlocking()
		case "ask":
			return notification.RequestMessagesNonBlocking()
		case "done":
			if err := submission.Stop(); err != nil {
				return err
			}
			return notification.Stop()
		}
		return fmt.Errorf("unknown command %s", words[0])
	})
}

// LocalServer serves every program that connects to its socket, from one list of messages.
// Commands: `add HEX`, `answer accept`, `answer invalid TEXT`, `answer received`, `answer expired`, `answer other TEXT`.
func LocalServer(path string, shake Shake) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		Fail(err)
	}
	Say("listening", nil)
	server := &localServer{shake: shake}
	go server.accept(listener)
	Commands(server.command)
}

type localServer struct {
	shake    Shake
	lock     sync.Mutex
	answer   pcommon.RejectReason
	messages []*pcommon.DmqMessage
	feeds    []*localmessagenotification.Server
}

func (server *localServer) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			Fail(err)
		}
		go server.serve(conn) // its handshake waits for the program
	}
}

func (server *localServer) serve(conn net.Conn) {
	link, err := newLink(conn, protocol.ProtocolModeNodeToClient, true, server.shake)
	if err != nil {
		Say("not-connected", Event{"text": err.Error()})
		return
	}
	authenticator, validator := noChecks()
	submissionConfig := localmessagesubmission.NewConfig(
		localmessagesubmission.WithAuthenticator(authenticator),
		localmessagesubmission.WithTTLValidator(validator),
		localmessagesubmission.WithSubmitMessageFunc(
			func(_ localmessagesubmission.CallbackContext, message *pcommon.DmqMessage) pcommon.RejectReason {
				Say("submitted", Event{"message": encoded(message)})
				server.lock.Lock()
				defer server.lock.Unlock()
				return server.answer
			},
		),
	)
	notificationConfig := localmessagenotification.NewConfig(
		localmessagenotification.WithAuthenticator(authenticator),
		localmessagenotification.WithTTLValidator(validator),
	)
	localmessagesubmission.NewServer(link.Options, &submissionConfig).Start()
	feed := localmessagenotification.NewServer(link.Options, &notificationConfig)
	feed.Start()
	server.lock.Lock()
	for _, message := range server.messages {
		if err := feed.AddMessage(message); err != nil {
			Fail(err)
		}
	}
	server.feeds = append(server.feeds, feed)
	server.lock.Unlock()
	link.Run()
}

func (server *localServer) command(words []string) error {
	server.lock.Lock()
	defer server.lock.Unlock()
	switch words[0] {
	case "add":
		message, err := decode(words[1])
		if err != nil {
			return err
		}
		server.messages = append(server.messages, message)
		for _, feed := range server.feeds {
			if err := feed.AddMessage(message); err != nil {
				return err
			}
		}
		return nil
	case "answer":
		answer, err := reasonOf(words[1], strings.Join(words[2:], " "))
		server.answer = answer
		if err == nil {
			Say("will-answer", nil)
		}
		return err
	}
	return fmt.Errorf("unknown command %s", words[0])
}

func reasonOf(name string, text string) (pcommon.RejectReason, error) {
	switch name {
	case "accept":
		return nil, nil
	case "invalid":
		return pcommon.InvalidReason{Message: text}, nil
	case "received":
		return pcommon.AlreadyReceivedReason{}, nil
	case "expired":
		return pcommon.ExpiredReason{}, nil
	case "other":
		return pcommon.OtherReason{Message: text}, nil
	}
	return nil, fmt.Errorf("unknown reason %s", name)
}

func textOf(reason pcommon.RejectReason) string {
	switch known := reason.(type) {
	case pcommon.InvalidReason:
		return known.Message
	case pcommon.OtherReason:
		return known.Message
	}
	return ""
}

// Verify says of each message what the library's own authenticator, as it comes, makes of it. Command: `message HEX`.
func Verify() {
	authenticator := pcommon.NewMessageAuthenticator(nil)
	Commands(func(words []string) error {
		if words[0] != "message" {
			return fmt.Errorf("unknown command %s", words[0])
		}
		message, err := decode(words[1])
		if err != nil {
			return err
		}
		text := ""
		if err := authenticator.VerifyMessage(message); err != nil {
			text = err.Error()
		}
		Say("verdict", Event{"text": text})
		return nil
	})
}
