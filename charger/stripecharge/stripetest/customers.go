package stripetest

import (
	"slices"
	"strings"
)

// Customer is one customer of the stand-in's account and how its card behaves.
type Customer struct {
	ID                   string            `json:"id"`
	Email                string            `json:"email,omitempty"`
	DefaultPaymentMethod string            `json:"default_payment_method,omitempty"` // invoice_settings.default_payment_method
	DefaultSource        string            `json:"default_source,omitempty"`         // what the Charges API pays with
	Decline              string            `json:"decline,omitempty"`                // decline code of every payment; authentication_required asks for the cardholder
	Processing           bool              `json:"processing,omitempty"`             // payments stay processing for Config.ProcessingFor
	ProcessingFails      bool              `json:"processing_fails,omitempty"`       // and then fail instead of succeeding
	Deleted              bool              `json:"deleted,omitempty"`
	Metadata             map[string]string `json:"metadata,omitempty"`
}

// AddCustomer adds a customer, or replaces one: a card that is mended is the same id without Decline.
func (s *Server) AddCustomer(customer Customer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.customers[customer.ID] = customer
}

// customer finds a customer by id, reading the behaviour from the id's text where Config.AutoCustomers allows it. The caller holds s.mu.
func (s *Server) customer(id string) (Customer, bool) {
	if known, ok := s.customers[id]; ok {
		return known, true
	}
	if !s.cfg.AutoCustomers || !strings.HasPrefix(id, "cus_") || strings.Contains(id, "_missing") {
		return Customer{}, false
	}
	name := strings.TrimPrefix(id, "cus_")
	made := Customer{
		ID: id, DefaultPaymentMethod: "pm_card_" + name, DefaultSource: "card_" + name,
		Decline: declineInText(id), Processing: strings.Contains(id, "_processing"), ProcessingFails: strings.Contains(id, "_processing_fails"),
	}
	switch {
	case strings.Contains(id, "_nocard"):
		made.DefaultPaymentMethod, made.DefaultSource = "", ""
	case strings.Contains(id, "_nosource"):
		made.DefaultSource = ""
	}
	return made, true
}

// declineInText reads the decline code out of an id such as cus_7_decline_do_not_honor_0001 or pm_card_sca; empty when there is none.
func declineInText(id string) string {
	if strings.Contains(id, "_sca") {
		return "authentication_required"
	}
	_, code, found := strings.Cut(id, "_decline_")
	if !found {
		return ""
	}
	end := strings.IndexFunc(code, func(r rune) bool { return (r < 'a' || r > 'z') && r != '_' })
	if end >= 0 {
		code = code[:end]
	}
	return strings.TrimRight(code, "_")
}

type customerView struct {
	ID              string            `json:"id"`
	Object          string            `json:"object"`
	Created         int64             `json:"created"`
	Currency        any               `json:"currency"`
	DefaultSource   any               `json:"default_source"`
	Delinquent      bool              `json:"delinquent"`
	Description     any               `json:"description"`
	Email           any               `json:"email"`
	InvoiceSettings invoiceSettings   `json:"invoice_settings"`
	Livemode        bool              `json:"livemode"`
	Metadata        map[string]string `json:"metadata"`
}

type invoiceSettings struct {
	DefaultPaymentMethod any `json:"default_payment_method"`
}

type deletedView struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// expandedCustomer is what an expanded customer field shows: the whole customer, or the bare id of an unknown one. The caller holds s.mu.
func (s *Server) expandedCustomer(id string) any {
	customer, ok := s.customer(id)
	if !ok {
		return orNull(id)
	}
	return s.customerView(customer, nil)
}

func (s *Server) customerView(customer Customer, expand []string) any {
	if customer.Deleted {
		return deletedView{ID: customer.ID, Object: "customer", Deleted: true}
	}
	v := customerView{
		ID: customer.ID, Object: "customer", Created: 1_700_000_000, DefaultSource: orNull(customer.DefaultSource), Email: orNull(customer.Email),
		InvoiceSettings: invoiceSettings{DefaultPaymentMethod: orNull(customer.DefaultPaymentMethod)},
		Livemode:        s.account.livemode, Metadata: customer.Metadata,
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if slices.Contains(expand, "invoice_settings.default_payment_method") && customer.DefaultPaymentMethod != "" {
		v.InvoiceSettings.DefaultPaymentMethod = methodView{
			ID: customer.DefaultPaymentMethod, Object: "payment_method", Type: "card", Customer: customer.ID,
		}
	}
	if slices.Contains(expand, "default_source") && customer.DefaultSource != "" {
		v.DefaultSource = cardSource{ID: customer.DefaultSource, Object: "card", Brand: "Visa", Last4: "4242", Customer: customer.ID}
	}
	return v
}

// getCustomer answers GET /v1/customers/{id}. The caller holds s.mu.
func (s *Server) getCustomer(c *call, id string) answer {
	expand, refused := c.expand("invoice_settings.default_payment_method", "default_source")
	if refused != nil {
		return refusedEarly(refused)
	}
	customer, ok := s.customer(id)
	if !ok {
		return missing("customer", id, "id", 404)
	}
	return answer{status: 200, body: s.customerView(customer, expand), objectID: id}
}
