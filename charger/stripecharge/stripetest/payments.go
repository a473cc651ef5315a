package stripetest

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// run is the API itself: one endpoint, no idempotency, no faults. The caller holds s.mu.
func (s *Server) run(c *call, at time.Time) answer {
	parts := strings.Split(strings.Trim(c.path, "/"), "/")
	id := ""
	if len(parts) > 2 {
		id, parts[2] = parts[2], "{id}"
	}
	switch c.method + "/" + strings.Join(parts, "/") {
	case "POST/v1/charges":
		return s.createCharge(c, at)
	case "GET/v1/charges":
		return s.listCharges(c)
	case "GET/v1/charges/{id}":
		return s.getCharge(c, id)
	case "POST/v1/payment_intents":
		return s.createIntent(c, at)
	case "GET/v1/payment_intents":
		return s.listIntents(c)
	case "GET/v1/payment_intents/{id}":
		return s.getIntent(c, id)
	case "POST/v1/payment_intents/{id}/cancel":
		return s.cancelIntent(c, id, at)
	case "GET/v1/customers/{id}":
		return s.getCustomer(c, id)
	case "GET/v1/account":
		return s.getAccount()
	case "GET/v1/balance":
		return s.getBalance()
	}
	return answer{status: http.StatusNotFound, body: errorBody{&stripeError{
		Type: typeInvalid, Message: "Unrecognized request URL (" + c.method + ": " + c.path + ").",
	}}}
}

// createCharge answers POST /v1/charges.
func (s *Server) createCharge(c *call, at time.Time) answer {
	if refused := c.unknown("amount", "currency", "customer", "source", "description", "metadata", "expand", "capture",
		"statement_descriptor", "statement_descriptor_suffix", "receipt_email", "transfer_group", "on_behalf_of", "shipping"); refused != nil {
		return refusedEarly(refused)
	}
	t, refused := c.terms("payment_intent", "customer")
	if refused != nil {
		return refusedEarly(refused)
	}
	capture, refused := c.boolean("capture", true)
	if refused != nil {
		return refusedEarly(refused)
	}
	source := c.form.Get("source")
	if t.customer == "" && source == "" {
		return refusedEarly(invalid("parameter_missing", "source", "Must provide source or customer."))
	}
	customer, known := s.customer(t.customer)
	if t.customer != "" && (!known || customer.Deleted) {
		return missing("customer", t.customer, "customer", http.StatusBadRequest)
	}
	if refused = t.checkAmount(); refused != nil {
		return refusedLate(http.StatusBadRequest, refused)
	}
	if source == "" {
		source = customer.DefaultSource
	}
	if source == "" {
		return noCard()
	}
	b := s.current()
	made := &charge{
		amount: t.amount, currency: t.currency, customer: t.customer, description: t.description, descriptor: t.descriptor,
		paymentMethod: source, created: at.Unix(), captured: capture, metadata: t.metadata,
	}
	s.pay(b, c, made, customer, at)
	if made.failure != nil {
		a := refusedLate(http.StatusPaymentRequired, made.failure.asError(made.id))
		a.objectID = made.id
		return a
	}
	return answer{status: http.StatusOK, body: s.chargeView(b, made, t.expand), objectID: made.id, kept: true}
}

// pay asks the bank and puts the charge, whatever became of it, on the shelf and into the ledger.
func (s *Server) pay(b *book, c *call, made *charge, customer Customer, at time.Time) {
	made.id = "ch_" + s.ids.next()
	made.seq = len(b.charges.all)
	b.charges.add(made.id, made.customer, made)
	code := declineInText(made.paymentMethod)
	if code == "" {
		code = customer.Decline
	}
	switch {
	case code != "":
		made.status, made.failure, made.captured = statusFailed, declined(code), false
		s.record(at, ChargeFailed, made, c)
	case customer.Processing:
		made.status = statusPending
		s.record(at, ChargePending, made, c)
		account := b.accountKey
		s.later(at.Add(s.cfg.ProcessingFor), func(end time.Time) {
			s.inAccount(account, func() { s.endProcessing(b, made, customer.ProcessingFails, end) })
		})
	case !made.captured:
		made.status = statusSucceeded
		s.record(at, ChargeAuthorized, made, c)
	default:
		made.status = statusSucceeded
		s.record(at, ChargeSucceeded, made, c)
	}
}

// endProcessing brings a pending charge, and the payment intent it belongs to, to its end.
func (s *Server) endProcessing(b *book, made *charge, fails bool, at time.Time) {
	if made.status != statusPending {
		return
	}
	p := b.intents.byID[made.intent]
	if fails {
		made.status, made.failure, made.captured = statusFailed, declined("generic_decline"), false
		s.record(at, ChargeFailed, made, nil)
		if p != nil {
			p.status, p.lastError = statusNeedsMethod, made.failure.asError(made.id)
		}
		return
	}
	made.status = statusSucceeded
	s.record(at, ChargeSucceeded, made, nil)
	if p != nil {
		p.status, p.received = statusSucceeded, p.amount
	}
}

// createIntent answers POST /v1/payment_intents.
func (s *Server) createIntent(c *call, at time.Time) answer {
	if refused := c.unknown("amount", "currency", "customer", "payment_method", "payment_method_types", "payment_method_options", "confirm",
		"off_session", "error_on_requires_action", "capture_method", "confirmation_method", "description", "metadata", "expand",
		"statement_descriptor", "statement_descriptor_suffix", "receipt_email", "return_url", "setup_future_usage", "transfer_group",
		"automatic_payment_methods", "on_behalf_of", "shipping", "mandate"); refused != nil {
		return refusedEarly(refused)
	}
	t, refused := c.terms("latest_charge", "customer", "payment_method")
	if refused != nil {
		return refusedEarly(refused)
	}
	how, refused := c.confirmation()
	if refused != nil {
		return refusedEarly(refused)
	}
	customer, known := s.customer(t.customer)
	if t.customer != "" && (!known || customer.Deleted) {
		return missing("customer", t.customer, "customer", http.StatusBadRequest)
	}
	if refused = t.checkAmount(); refused != nil {
		return refusedLate(http.StatusBadRequest, refused)
	}
	method := c.form.Get("payment_method")
	if method != "" && !strings.HasPrefix(method, "pm_") && !strings.HasPrefix(method, "card_") && !strings.HasPrefix(method, "src_") {
		return missing("PaymentMethod", method, "payment_method", http.StatusBadRequest)
	}
	if method == "" && how.confirm {
		return refusedLate(http.StatusBadRequest, invalid("payment_intent_unexpected_state", "",
			"You cannot confirm this PaymentIntent because it's missing a payment method. You can either update the PaymentIntent with a "+
				"payment method and then confirm it again, or confirm it again directly with a payment method or ConfirmationToken."))
	}
	b := s.current()
	p := &intent{
		id: "pi_" + s.ids.next(), seq: len(b.intents.all), amount: t.amount, currency: t.currency, customer: t.customer,
		description: t.description, descriptor: t.descriptor, paymentMethod: method, methodTypes: how.types,
		captureMethod: how.capture, created: at.Unix(), status: statusNeedsMethod, metadata: t.metadata,
	}
	b.intents.add(p.id, p.customer, p)
	s.recordIntent(at, IntentCreated, p, c)
	if method != "" {
		p.status = statusNeedsConfirming
	}
	if how.confirm {
		if failed := s.confirm(b, c, p, customer, how, at); failed != nil {
			view := s.intentView(b, p, nil)
			e := *failed
			e.PaymentIntent = &view
			a := refusedLate(http.StatusPaymentRequired, &e)
			a.objectID = p.id
			return a
		}
	}
	return answer{status: http.StatusOK, body: s.intentView(b, p, t.expand), objectID: p.id, kept: true}
}

// confirmation is how a payment intent is to be confirmed.
type confirmation struct {
	confirm, offSession, failOnAction bool
	capture                           string
	types                             []string
}

func (c *call) confirmation() (how confirmation, refused *stripeError) {
	if how.confirm, refused = c.boolean("confirm", false); refused != nil {
		return how, refused
	}
	if text := c.form.Get("off_session"); text == "recurring" || text == "one_off" {
		how.offSession = true
	} else if how.offSession, refused = c.boolean("off_session", false); refused != nil {
		return how, refused
	}
	if how.failOnAction, refused = c.boolean("error_on_requires_action", false); refused != nil {
		return how, refused
	}
	for _, name := range []string{"off_session", "error_on_requires_action"} {
		if c.form.Has(name) && !how.confirm {
			return how, invalid("", name, "The parameter `"+name+"` cannot be passed when creating a PaymentIntent unless `confirm` is set to true.")
		}
	}
	how.capture = c.form.Get("capture_method")
	if how.capture == "" {
		how.capture = "automatic"
	}
	if !slices.Contains([]string{"automatic", "automatic_async", "manual"}, how.capture) {
		return how, invalid("", "capture_method", "Invalid capture_method: must be one of automatic, automatic_async, or manual")
	}
	for name, values := range c.form {
		if strings.HasPrefix(name, "payment_method_types[") {
			how.types = append(how.types, values...)
		}
	}
	if len(how.types) == 0 {
		how.types = []string{"card"}
	}
	slices.Sort(how.types)
	return how, nil
}

// confirm tries to pay a payment intent; the error is the bank's refusal, after which the intent wants another payment method.
func (s *Server) confirm(b *book, c *call, p *intent, customer Customer, how confirmation, at time.Time) *stripeError {
	asksCardholder := customer.Decline == "authentication_required" || declineInText(p.paymentMethod) == "authentication_required"
	if asksCardholder && !how.offSession && !how.failOnAction {
		p.status = statusNeedsAction
		s.recordIntent(at, IntentNeedsAction, p, c)
		return nil
	}
	made := &charge{
		intent: p.id, amount: p.amount, currency: p.currency, customer: p.customer, description: p.description, descriptor: p.descriptor,
		paymentMethod: p.paymentMethod, created: at.Unix(), captured: p.captureMethod != "manual", metadata: p.metadata,
	}
	s.pay(b, c, made, customer, at)
	p.latestCharge = made.id
	switch {
	case made.failure != nil:
		p.status = statusNeedsMethod
		failed := made.failure.asError(made.id)
		failed.PaymentMethod = methodView{ID: p.paymentMethod, Object: "payment_method", Type: "card", Customer: orNull(p.customer)}
		p.lastError, p.paymentMethod = failed, ""
		s.recordIntent(at, IntentDeclined, p, c)
		return failed
	case made.status == statusPending:
		p.status = statusProcessing
	case !made.captured:
		p.status = statusNeedsCapture
	default:
		p.status, p.received = statusSucceeded, p.amount
	}
	return nil
}

// cancelIntent answers POST /v1/payment_intents/{id}/cancel.
func (s *Server) cancelIntent(c *call, id string, at time.Time) answer {
	if refused := c.unknown("cancellation_reason", "expand"); refused != nil {
		return refusedEarly(refused)
	}
	expand, refused := c.expand("latest_charge", "customer", "payment_method")
	if refused != nil {
		return refusedEarly(refused)
	}
	reason := c.form.Get("cancellation_reason")
	if reason != "" && !slices.Contains([]string{"duplicate", "fraudulent", "requested_by_customer", "abandoned"}, reason) {
		return refusedEarly(invalid("", "cancellation_reason",
			"Invalid cancellation_reason: must be one of duplicate, fraudulent, requested_by_customer, or abandoned"))
	}
	b := s.current()
	p := b.intents.byID[id]
	if p == nil {
		return missing("payment_intent", id, "intent", http.StatusNotFound)
	}
	if p.status == statusSucceeded || p.status == statusCanceled {
		view := s.intentView(b, p, nil)
		e := invalid("payment_intent_unexpected_state", "", "You cannot cancel this PaymentIntent because it has a status of "+p.status+
			". Only a PaymentIntent with one of the following statuses may be canceled: requires_payment_method, requires_capture, "+
			"requires_confirmation, requires_action, processing.")
		e.PaymentIntent = &view
		return refusedLate(http.StatusBadRequest, e)
	}
	p.status, p.canceledAt, p.cancelReason = statusCanceled, at.Unix(), reason
	if made := b.charges.byID[p.latestCharge]; made != nil && (made.status == statusPending || !made.captured) && made.failure == nil {
		made.status, made.captured, made.failure = statusFailed, false, declined("canceled")
		s.record(at, ChargeFailed, made, c)
	}
	s.recordIntent(at, IntentCanceled, p, c)
	return answer{status: http.StatusOK, body: s.intentView(b, p, expand), objectID: id, kept: true}
}
