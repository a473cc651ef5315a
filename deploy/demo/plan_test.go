package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"chargeonce/schema"
)

// outcome is what an independent reader makes of the messages: the product's parser, and the first event of a customer wins.
type outcome struct {
	published
	terms map[string]schema.Terms
	codes map[schema.FaultCode]int
}

func readByTheRules(t require.TestingT, p *plan) outcome {
	parser, err := schema.NewParser(schema.ParserConfig{Namespace: namespace})
	require.NoError(t, err)
	out := outcome{terms: map[string]schema.Terms{}, codes: map[schema.FaultCode]int{}}
	for _, b := range p.Batches {
		copies := 1
		if b.LoseAck {
			copies = 2
			out.Retried += len(b.Messages)
		}
		for range copies {
			for _, m := range b.Messages {
				out.Events++
				for _, o := range parser.Parse(m.Body, textProperties(m)) {
					out.Objects++
					out.count(o)
				}
			}
		}
	}
	inHub := map[string]bool{}
	for _, b := range p.Batches {
		for _, m := range b.Messages {
			inHub[string(m.Body)] = true
		}
	}
	for _, m := range p.Solace {
		require.Empty(t, m.Properties, "a line has none")
		require.NotContains(t, string(m.Body), "\n")
		out.Events++
		out.OverSolace++
		if inHub[string(m.Body)] {
			out.OverBoth++
		}
		objects := parser.Parse(m.Body, nil)
		require.Len(t, objects, 1)
		out.Objects++
		out.count(objects[0])
	}
	return out
}

func (o *outcome) count(object schema.Object) {
	if object.Fault != nil {
		o.Poison++
		o.codes[object.Fault.Code]++
		return
	}
	switch first, known := o.terms[object.Event.CustomerID]; {
	case !known:
		o.terms[object.Event.CustomerID] = object.Event.Terms()
		o.Intents++
	case first == object.Event.Terms():
		o.Duplicates++
	default:
		o.Conflicts++
	}
}

func textProperties(m *message) map[string]string {
	out := map[string]string{}
	for name, value := range m.Properties {
		if text, ok := value.(string); ok {
			out[name] = text
		}
	}
	return out
}

func TestPlanHoldsWhatItPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed, events := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(minEvents, 600).Draw(t, "events")
		p := makePlan(seed, events, rapid.IntRange(1, 8).Draw(t, "partitions"), rapid.Bool().Draw(t, "solace"))
		got := readByTheRules(t, p)

		got.Declines = p.Published.Declines // no parser knows how a card behaves
		require.Equal(t, got.published, p.Published)
		require.Equal(t, events, got.Events)
		require.GreaterOrEqual(t, 100*got.Duplicates, 8*events, "duplicates")
		require.GreaterOrEqual(t, 100*got.Conflicts, 2*events, "conflicts")
		require.GreaterOrEqual(t, 100*got.Poison, 2*events, "poison")
		require.GreaterOrEqual(t, 100*got.Declines, 3*events, "declines")
		require.Positive(t, got.Retried)

		require.Len(t, p.Customers, len(got.terms))
		sums, counts := map[string]int64{}, map[string]int64{}
		for id, terms := range got.terms {
			require.Equal(t, p.Customers[id].Terms, terms, id)
			sums[terms.Currency] += terms.AmountCents
			counts[terms.Currency]++
		}
		for _, e := range p.expected() {
			require.Equal(t, expectation{e.Currency, counts[e.Currency], sums[e.Currency]}, e)
		}
	})
}

func TestSameSeedPublishesTheSame(t *testing.T) {
	t.Parallel()
	one, same, other := makePlan(7, 500, 4, true), makePlan(7, 500, 4, true), makePlan(8, 500, 4, true)
	require.Equal(t, one, same)
	require.NotEqual(t, one, other)
}

func TestEventsGoOverBothBrokers(t *testing.T) {
	t.Parallel()
	with, without := makePlan(1, 2000, 4, true), makePlan(1, 2000, 4, false)
	require.GreaterOrEqual(t, with.Published.OverBoth, 50)
	require.Greater(t, with.Published.OverSolace, with.Published.OverBoth+50)
	require.Empty(t, without.Solace)
	require.Zero(t, without.Published.OverSolace)
	require.Equal(t, 2000, with.Published.Events)
	require.Equal(t, 2000, without.Published.Events)

	// One Stripe customer is known to the two producers under different names.
	byStripeCustomer := map[string][]string{}
	for id, c := range with.Customers {
		if c.kind == shared {
			byStripeCustomer[c.Terms.StripeCustomerID] = append(byStripeCustomer[c.Terms.StripeCustomerID], id)
		}
	}
	twoShapes := 0
	for stripeCustomer, ids := range byStripeCustomer {
		require.Len(t, ids, 2)
		if slices.Contains(ids, stripeCustomer) {
			twoShapes++
		}
	}
	require.Equal(t, 1, twoShapes)
}

func TestPoisonIsOfManyKinds(t *testing.T) {
	t.Parallel()
	p := makePlan(1, 2000, 4, true)
	got := readByTheRules(t, p)
	for _, code := range []schema.FaultCode{
		schema.FaultNotJSON, schema.FaultRepeatedKey, schema.FaultWrongType, schema.FaultColonInKeyField, schema.FaultEmptyBody,
		schema.FaultNegativeAmount, schema.FaultMisspeltField, schema.FaultBadCurrency,
	} {
		require.Positive(t, got.codes[code], code)
	}
	junk := 0
	for _, b := range p.Batches {
		for _, m := range b.Messages {
			if len(m.Body) == junkBytes {
				junk++
				require.NotContains(t, string(m.Body), "\n", "junk in lines would be many objects")
			}
		}
	}
	require.Positive(t, junk)
}

func TestBodiesHaveEveryShape(t *testing.T) {
	t.Parallel()
	var arrays, lines, structured, binary, encoded int
	for _, b := range makePlan(1, 2000, 4, true).Batches {
		for _, m := range b.Messages {
			switch {
			case len(m.Properties) > 0:
				binary++
			case bytes.Contains(m.Body, []byte(`"data_base64"`)):
				encoded++
			case bytes.Contains(m.Body, []byte(`"specversion"`)):
				structured++
			case bytes.HasPrefix(m.Body, []byte("[")):
				arrays++
			case bytes.Contains(m.Body, []byte("}\n{")):
				lines++
			}
		}
	}
	for _, n := range []int{arrays, lines, structured, binary, encoded} {
		require.Greater(t, n, 5)
	}
}

// A contradiction in another partition, or before the first event, would leave it to chance which of the two is the intent.
func TestContradictionNeverOvertakesTheFirstEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := makePlan(rapid.Uint64().Draw(t, "seed"), 300, 4, true)
		partition := map[string]int{}
		for _, b := range p.Batches {
			for _, m := range b.Messages {
				for _, o := range m.objects {
					if o.poison {
						continue
					}
					at, known := partition[o.customer]
					if !known {
						require.Equal(t, p.Customers[o.customer].Terms, o.terms)
						partition[o.customer] = b.Partition
						continue
					}
					require.Equal(t, at, b.Partition)
				}
			}
		}
	})
}

func TestCustomersThatDeclineAreInTheStandInsWords(t *testing.T) {
	t.Parallel()
	counts := map[string]int{}
	for _, c := range makePlan(1, 2000, 4, true).Customers {
		if c.kind != declines {
			require.Regexp(t, `^cus_[A-Z]+[0-9]+$`, c.Terms.StripeCustomerID)
			continue
		}
		require.Regexp(t, `^cus_[A-Z]+[0-9]+_(decline_[a-z_]+|nocard|sca)$`, c.Terms.StripeCustomerID)
		counts[c.Terms.StripeCustomerID[len("cus_BBBBBBBBBB"):]]++
	}
	require.GreaterOrEqual(t, len(counts), 6)
}
