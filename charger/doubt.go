package charger

import (
	"context"
	"log/slog"
	"sync/atomic"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
)

// tellDoubt writes one line for each intent that falls into doubt, for an alert: at the end of the call that left it so, or,
// after its process died, at the end of the first call after that.
func (w *worker) tellDoubt(ctx context.Context, c claimed, answer stripecharge.Answer, e ending) {
	if e.reason != schema.ReasonInDoubt || (c.intent.Unresolved > 0 && !crashed(c.intent)) {
		return
	}
	w.log.ErrorContext(ctx, "intent in doubt: Stripe may or may not have charged", slog.Int64("intent_id", c.intent.ID), slog.Int64("attempt_id", c.AttemptID),
		slog.String("idempotency_key", c.request.IdempotencyKey), slog.String("operation", string(c.op)), slog.String("result", e.result),
		slog.String("request_id", answer.RequestID), slog.Float64("key_safe_seconds", max(0, Window.Seconds()-c.intent.SecondsSinceFirstSend)))
}

// keyWatch is what this process has seen of its way to Stripe: whether the idempotency key arrives there. The way is the
// same for all runs.
type keyWatch struct {
	echoed, lost atomic.Bool
}

// reaches reports whether a second send under the same key surely is one to Stripe too.
func (k *keyWatch) reaches() bool { return k.echoed.Load() && !k.lost.Load() }

// watchKey notes whether a create's answer repeats the idempotency key. A changed key stops the run: nothing that is sent
// again would be known to Stripe. A missing one may only be a header dropped on the way back: from then on nothing in doubt
// is sent again by this process without a look-up.
func (w *worker) watchKey(ctx context.Context, c claimed, answer stripecharge.Answer, e *ending) {
	if answer.KeyEcho == stripecharge.KeyEchoed {
		w.way.echoed.Store(true)
	}
	if answer.KeyEcho != stripecharge.KeyChanged && answer.KeyEcho != stripecharge.KeyNotEchoed {
		return
	}
	known := w.way.lost.Swap(true)
	kind := "idempotency_key_" + string(answer.KeyEcho)
	w.metrics.alarms.WithLabelValues(kind).Inc()
	if answer.KeyEcho == stripecharge.KeyChanged && e.pauseRun == "" {
		e.pauseRun, e.pauseDetail = "mismatch", "the answer tells another Idempotency-Key than was sent: something between here and Stripe changes it, and Stripe would take a second send for a new charge"
	}
	if !known {
		w.log.ErrorContext(ctx, "the idempotency key is not what Stripe answers with; next: nothing in doubt is sent again without a look-up",
			slog.String("kind", kind), slog.Int64("intent_id", c.intent.ID), slog.String("request_id", answer.RequestID))
	}
}
