package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"chargeonce/ingest/eventhubs/eventhubstest"
)

// publish sends the plan's batches with the real client, spread over a time so that something can happen meanwhile.
func (p *publisher) publish(ctx context.Context, batches []batch, over time.Duration) error {
	client, err := azeventhubs.NewProducerClientFromConnectionString(p.connection, p.hub, &azeventhubs.ProducerClientOptions{
		RetryOptions: azeventhubs.RetryOptions{MaxRetries: 5, RetryDelay: retryDelay, MaxRetryDelay: 10 * retryDelay},
	})
	if err != nil {
		return fmt.Errorf("make the producer: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = client.Close(closing) // everything was acknowledged; how the connection ends does not matter
	}()
	tick := time.NewTicker(max(over/time.Duration(len(batches)), time.Microsecond))
	defer tick.Stop()
	for i, b := range batches {
		if err := p.send(ctx, client, b); err != nil {
			return fmt.Errorf("publish batch %d of %d to partition %d: %w", i+1, len(batches), b.Partition, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

const (
	retryDelay   = 200 * time.Millisecond
	sendTimeout  = 30 * time.Second
	closeTimeout = 5 * time.Second
	// maxAnswerBytes bounds what is read of a stand-in's answer: the ledger of a million charges.
	maxAnswerBytes = 2 << 30
)

// publisher sends events to the Event Hubs stand-in.
type publisher struct {
	connection, hub string
	control         string       // URL of the stand-in's control pages
	sent            atomic.Int64 // messages acknowledged, or known to be stored twice
}

func (p *publisher) send(ctx context.Context, client *azeventhubs.ProducerClient, b batch) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sendTimeout, fmt.Errorf("not acknowledged within %s", sendTimeout))
	defer cancel()
	partition := strconv.Itoa(b.Partition)
	data, err := client.NewEventDataBatch(ctx, &azeventhubs.EventDataBatchOptions{PartitionID: &partition})
	if err != nil {
		return fmt.Errorf("begin a batch: %w", err)
	}
	for _, m := range b.Messages {
		if err := data.AddEventData(&azeventhubs.EventData{Body: m.Body, Properties: m.Properties}, nil); err != nil {
			return fmt.Errorf("add an event of %d bytes: %w", len(m.Body), err)
		}
	}
	copies := 1
	if b.LoseAck {
		copies = 2
		fault := eventhubstest.Fault{Kind: eventhubstest.FaultLoseAck, Hub: p.hub, Partition: partition, Times: 1}
		if err := postJSON(ctx, p.control+"/_standin/faults", map[string]any{"faults": []eventhubstest.Fault{fault}}); err != nil {
			return err
		}
	}
	if err := client.SendEventDataBatch(ctx, data, nil); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	p.sent.Add(int64(copies * len(b.Messages)))
	return nil
}

func postJSON(ctx context.Context, url string, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request to %s: %w", url, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(encoded))
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	return exchangeJSON(request, nil)
}

func getJSON(ctx context.Context, url string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	return exchangeJSON(request, into)
}

func exchangeJSON(request *http.Request, into any) error {
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", request.URL, err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", request.URL, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s: %s", request.URL, response.Status, bytes.TrimSpace(content))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", request.URL, err)
	}
	return nil
}
