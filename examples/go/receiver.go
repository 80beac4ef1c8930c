// A receiver that verifies, and keeps each event once, with Go's standard library alone:
//
//	WEBHOOK_SECRET=whsec_… go run receiver.go 9000 inbox.ndjson
//
// listens on 127.0.0.1:9000. The inbox is a file with one event per line, on disk before
// the request is answered; the work is done by whoever reads it, in its order. (With a
// database, record tenant and id in the transaction of the work instead.) While a secret
// is being replaced, WEBHOOK_SECRET has both, separated by a comma.
package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	remembered   = 14 * 24 * time.Hour
	tolerance    = 300 // seconds
	bodyBytesMax = 16 << 20
)

// entry is a line of the inbox.
type entry struct {
	ReceivedAt time.Time `json:"received_at"`
	Tenant     string    `json:"tenant"`
	ID         string    `json:"id"`
	Key        string    `json:"key,omitempty"`
	Seq        uint64    `json:"seq,omitempty"`
	// Late comes after a later place of its key: a replay.
	Late bool   `json:"late,omitempty"`
	Body string `json:"body,omitempty"`
}

// eventName names an event: two tenants may have events with the same id.
type eventName struct{ tenant, id string }

// laneName names a lane: two tenants may have the same key, too.
type laneName struct{ tenant, key string }

type inbox struct {
	lock    sync.Mutex
	file    *os.File
	length  int64
	seen    map[eventName]time.Time
	highest map[laneName]uint64
}

func openInbox(path string) (*inbox, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	// A crash may have left half a line, of an event that was never acknowledged.
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	box := &inbox{file: file, length: int64(len(whole)), seen: map[eventName]time.Time{}, highest: map[laneName]uint64{}}
	for _, line := range bytes.Split(bytes.TrimSpace(whole), []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var kept entry
		if err := json.Unmarshal(line, &kept); err != nil {
			return nil, err
		}
		box.remember(kept)
	}
	return box, file.Truncate(box.length)
}

// receive keeps an event, unless it is kept already, and returns the status to answer.
func (box *inbox) receive(event entry) (int, error) {
	box.lock.Lock()
	defer box.lock.Unlock()
	if at, isKnown := box.seen[eventName{event.Tenant, event.ID}]; isKnown && time.Since(at) < remembered {
		return http.StatusOK, nil
	}
	event.Late = event.Seq > 0 && event.Seq < box.highest[laneName{event.Tenant, event.Key}]
	line, err := json.Marshal(event)
	if err != nil {
		return 0, err
	}
	line = append(line, '\n')
	if _, err = box.file.WriteAt(line, box.length); err == nil {
		err = box.file.Sync()
	}
	if err != nil {
		_ = box.file.Truncate(box.length) // released: the gateway sends it again
		return 0, err
	}
	box.length += int64(len(line))
	box.remember(event)
	return http.StatusAccepted, nil
}

func (box *inbox) remember(event entry) {
	box.seen[eventName{event.Tenant, event.ID}] = event.ReceivedAt
	lane := laneName{event.Tenant, event.Key}
	if event.Seq > box.highest[lane] {
		box.highest[lane] = event.Seq
	}
}

// forget removes what is older than a replay is likely to be.
func (box *inbox) forget() {
	for range time.Tick(time.Hour) {
		box.lock.Lock()
		for name, at := range box.seen {
			if time.Since(at) >= remembered {
				delete(box.seen, name)
			}
		}
		box.lock.Unlock()
	}
}

// isSigned says whether one of the keys has signed the raw body, within five minutes.
func isSigned(keys [][]byte, header http.Header, body []byte) bool {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	age := time.Now().Unix() - seconds
	if err != nil || age > tolerance || age < -tolerance {
		return false
	}
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		expected := mac.Sum(nil)
		for _, token := range strings.Split(header.Get("webhook-signature"), " ") {
			version, encoded, _ := strings.Cut(token, ",")
			found, err := base64.StdEncoding.DecodeString(encoded)
			if version == "v1" && err == nil && hmac.Equal(found, expected) {
				return true
			}
		}
	}
	return false
}

func main() {
	var keys [][]byte
	for _, secret := range strings.Split(os.Getenv("WEBHOOK_SECRET"), ",") {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) == 0 {
			log.Fatal("WEBHOOK_SECRET is not whsec_ and base64")
		}
		keys = append(keys, key)
	}
	box, err := openInbox(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	go box.forget()
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, bodyBytesMax))
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			http.Error(response, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil {
			http.Error(response, err.Error(), http.StatusServiceUnavailable) // half a body says nothing
			return
		}
		if !isSigned(keys, request.Header, body) {
			http.Error(response, "no secret fits the signature, or its time is more than five minutes away", http.StatusBadRequest)
			return
		}
		event := entry{}
		if err := json.Unmarshal(body, &event); err != nil || event.ID == "" || event.Tenant == "" {
			http.Error(response, "not an envelope", http.StatusUnprocessableEntity)
			return
		}
		event.ReceivedAt, event.Body = time.Now().UTC(), string(body)
		status, err := box.receive(event)
		if err != nil {
			log.Print(err)
			status = http.StatusServiceUnavailable // the gateway sends it again
		}
		response.WriteHeader(status)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
