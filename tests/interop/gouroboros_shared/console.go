// Package shared drives the DMQ packages of gouroboros from a console: commands come in line by line, what happened
// goes out as one JSON object per line. It is built against two versions of the library.
package shared

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/blinklabs-io/gouroboros/cbor"
	pcommon "github.com/blinklabs-io/gouroboros/protocol/common"
)

// Event is one line of output.
type Event map[string]any

var outputLock sync.Mutex

// Say writes one event.
func Say(name string, fields Event) {
	line := Event{"event": name}
	for key, value := range fields {
		line[key] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		Fail(err)
	}
	outputLock.Lock()
	defer outputLock.Unlock()
	fmt.Println(string(text))
}

// Fail says what went wrong and ends the program.
func Fail(err error) {
	Say("error", Event{"text": err.Error()})
	os.Exit(1)
}

// Commands calls handle for each line of standard input, split into words, until the input ends.
func Commands(handle func(words []string) error) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 0, 65536), 1<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		if err := handle(words); err != nil {
			Say("refused-here", Event{"text": err.Error()})
		}
	}
}

func decode(text string) (*pcommon.DmqMessage, error) {
	raw, err := hex.DecodeString(text)
	if err != nil {
		return nil, err
	}
	message := &pcommon.DmqMessage{}
	if _, err := cbor.Decode(raw, message); err != nil {
		return nil, err
	}
	return message, nil
}

// The library keeps no received bytes, so this is what it would forward.
func encoded(message *pcommon.DmqMessage) string {
	raw, err := cbor.Encode(message)
	if err != nil {
		Fail(err)
	}
	return hex.EncodeToString(raw)
}

func encodedAll(messages []pcommon.DmqMessage) []string {
	texts := make([]string, 0, len(messages))
	for index := range messages {
		texts = append(texts, encoded(&messages[index]))
	}
	return texts
}
