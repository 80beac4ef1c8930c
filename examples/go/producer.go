// Hands in events, each once, with Go's standard library alone:
//
//	POSTHASTE_TOKEN=… go run producer.go http://127.0.0.1:8400 default 3
//
// hands in three events of an order. Run it again: the gateway knows them already.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const tries = 10

var client = http.Client{Timeout: 30 * time.Second}

type event struct {
	ID   string         `json:"id"`
	Type string         `json:"type"`
	Key  string         `json:"key,omitempty"`
	Data map[string]any `json:"data"`
}

type receipt struct {
	ID        string `json:"id"`
	Duplicate bool   `json:"duplicate"`
}

// send hands in an event and returns the receipt. The event's id makes repeats safe.
func send(server, tenant string, event event) (receipt, error) {
	body, err := json.Marshal(event)
	if err != nil {
		return receipt{}, err
	}
	for try := 1; ; try++ {
		accepted, retryAfter, isTemporary, err := sendOnce(server, tenant, body)
		if err == nil || !isTemporary || try == tries {
			return accepted, err
		}
		// Doubles up to ten seconds, half of it drawn, and never less than was asked for.
		backoff := 100 * time.Millisecond << (try - 1)
		if backoff > 10*time.Second {
			backoff = 10 * time.Second
		}
		time.Sleep(retryAfter + backoff/2 + time.Duration(rand.Int63n(int64(backoff/2))))
	}
}

func sendOnce(server, tenant string, body []byte) (accepted receipt, retryAfter time.Duration, isTemporary bool, err error) {
	request, err := http.NewRequest("POST", server+"/v1/tenants/"+tenant+"/events", bytes.NewReader(body))
	if err != nil {
		return accepted, 0, false, err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("POSTHASTE_TOKEN"))
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return accepted, 0, true, err // not reached, reset, or no answer in time
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return accepted, 0, true, err
	}
	switch answer.StatusCode {
	case http.StatusAccepted:
		return accepted, 0, false, json.Unmarshal(text, &accepted)
	case 408, 429, 500, 502, 503, 504, 507:
		seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
		return accepted, time.Duration(seconds) * time.Second, true, fmt.Errorf("%s: %s", answer.Status, text)
	default:
		return accepted, 0, false, fmt.Errorf("refused: %s: %s", answer.Status, text)
	}
}

func main() {
	rand.Seed(time.Now().UnixNano())
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	for n := 1; n <= count; n++ {
		// The id comes from what happened, so that a repeat after a crash has no effect.
		id := fmt.Sprintf("order-7-%d", n)
		event := event{ID: id, Type: "order.changed", Key: "order-7", Data: map[string]any{"step": n}}
		receipt, err := send(strings.TrimRight(os.Args[1], "/"), os.Args[2], event)
		if err != nil {
			log.Fatalf("%s: %v", id, err)
		}
		outcome := "accepted"
		if receipt.Duplicate {
			outcome = "duplicate"
		}
		fmt.Println(receipt.ID, outcome)
	}
}
