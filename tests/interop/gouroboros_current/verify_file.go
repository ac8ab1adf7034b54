package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/blinklabs-io/gouroboros/cbor"
	"github.com/blinklabs-io/gouroboros/kes"
	pcommon "github.com/blinklabs-io/gouroboros/protocol/common"
	shared "stagepost.test/interop/gouroboros_shared"
)

// verifyFile checks messages of one size that lie in a file, and says how much processor time they took.
// Commands: `pool HEX` for each pool that may send, `round FROM COUNT`.
func verifyFile(path string, messageBytes int) {
	content, err := os.ReadFile(path)
	if err != nil {
		shared.Fail(err)
	}
	authenticator := pcommon.NewMessageAuthenticator(nil)
	authenticator.SetKESVerifier(verifyKes)
	lifetimes := pcommon.NewTTLValidator(0, nil)
	shared.Say("ready", shared.Event{"messages": len(content) / messageBytes})
	shared.Commands(func(words []string) error {
		switch words[0] {
		case "pool":
			authenticator.RegisterSPOPool(words[1])
			return nil
		case "round":
			from, err := strconv.Atoi(words[1])
			if err != nil {
				return err
			}
			count, err := strconv.Atoi(words[2])
			if err != nil {
				return err
			}
			runtime.GC()
			began := processorTime()
			for index := from; index < from+count; index++ {
				message := &pcommon.DmqMessage{}
				raw := content[index*messageBytes : (index+1)*messageBytes]
				if _, err := cbor.Decode(raw, message); err != nil {
					return err
				}
				if err := lifetimes.ValidateMessageTTL(message); err != nil {
					return err
				}
				if err := authenticator.VerifyMessage(message); err != nil {
					return fmt.Errorf("message %d: %w", index, err)
				}
			}
			taken := processorTime() - began
			shared.Say("round", shared.Event{"accepted": count, "microseconds": taken.Microseconds()})
			return nil
		}
		return fmt.Errorf("unknown command %s", words[0])
	})
}

// What the library's ledger package does with the same arguments, without the rest of a ledger.
func verifyKes(payload, signature, key []byte, kesPeriod, slot, slotsPerKesPeriod uint64) (bool, error) {
	return kes.VerifySignedKES(key, slot/slotsPerKesPeriod-kesPeriod, payload, signature), nil
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		shared.Fail(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
