package ingest

import (
	"context"
	"fmt"
	"time"

	"chargeonce/schema"
)

// RecordEach is Record, and tells each (may be nil) of every object once it is committed, in the order of delivery. Where it returns
// an error, the counts and what each was told are of the parts that were committed before.
func (r *Recorder) RecordEach(ctx context.Context, batch []Delivery, inTx InTx, each func(ObjectResult)) (Counts, error) {
	started := time.Now()
	if err := checkSize(batch); err != nil {
		return Counts{}, err
	}
	var counts Counts
	commit := func(items []*item, inTx InTx) error {
		if err := r.recordPart(ctx, items, inTx, &counts); err != nil {
			return fmt.Errorf("record %d deliveries: %w", len(batch), err)
		}
		tell(each, items)
		return nil
	}
	var items []*item
	for i := range batch {
		items = r.appendItems(items, &batch[i])
		for len(items) > maxPartObjects {
			if err := commit(items[:maxPartObjects], nil); err != nil {
				return counts, err
			}
			items = items[maxPartObjects:]
		}
	}
	if err := commit(items, inTx); err != nil {
		return counts, err
	}
	r.metrics.recorded(counts, time.Since(started))
	return counts, nil
}

// ObjectResult says what became of one object.
type ObjectResult struct {
	Result   Result
	Position string              // the delivery's, and the object's place in it
	Event    schema.BillingEvent // what it says; the zero value when Fault is set by the parser or the source
	Fault    *schema.Fault       // why it cannot become an intent; nil when it can
}

// Result is what became of an object, or in a Preview what would.
type Result string

// The results, as Counts has them.
const (
	ResultIntent      Result = "intent"
	ResultDuplicate   Result = "duplicate"
	ResultRedelivery  Result = "redelivery"
	ResultConflict    Result = "conflict"
	ResultQuarantined Result = "quarantined"
)

func tell(each func(ObjectResult), items []*item) {
	if each == nil {
		return
	}
	for _, it := range items {
		fault := it.fault
		if fault == nil {
			fault = it.refusal
		}
		each(ObjectResult{Result: it.result.public(), Position: it.position, Event: it.event, Fault: fault})
	}
}

func (r result) public() Result {
	switch r {
	case resultIntent:
		return ResultIntent
	case resultDuplicate:
		return ResultDuplicate
	case resultRedelivery:
		return ResultRedelivery
	case resultConflict:
		return ResultConflict
	case resultQuarantined:
		return ResultQuarantined
	case resultNone:
	}
	return ""
}
