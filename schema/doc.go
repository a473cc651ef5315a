// Package schema holds the words of chargeonce: billing event, key, period, money, intent, status.
//
// It reads no file, opens no connection and knows no clock, so that every program comes to the same
// answer about the same bytes, today and in a replay next year.
//
// # The story
//
// A producer says "this customer owes this amount for this period" in a JSON object. A [Parser],
// made for one namespace with its one [PeriodFormat], takes a delivered body apart:
//
//	p, err := schema.NewParser(schema.ParserConfig{Namespace: "usage-billing"})
//	...
//	for _, object := range p.Parse(body, properties) {
//		if object.Fault != nil {
//			// quarantine object.Raw with object.Fault
//			continue
//		}
//		key := object.Event.Key(p.Namespace())
//		// record the intent
//	}
//
// Every object is an event or a [Fault], never both, and no body gives nothing: bytes that were
// delivered are accounted for. A bad object stands alone. Only where the syntax around objects
// breaks is the remainder of an array one fault, because a guess there could make an event out of
// the inside of another. Foreign shapes are read through a [Mapping].
//
// # One obligation, one key
//
// [IdempotencyKey] is a hash of customer, period and namespace and of nothing that changes between
// two deliveries. A second event of a recorded key is a duplicate if its [Terms] are the same and a
// conflict if they are not; [Compare] tells. So that one obligation has one spelling, the parser is
// strict where a lenient one would be friendly: names are case-sensitive, a field that is nearly
// spelt like one of ours is a fault rather than unknown, periods are real and padded, and ':' stays
// out of the parts of a key.
//
// # Money
//
// Amounts are whole numbers of the currency's minor unit as Stripe counts it: cents for usd, yen for
// jpy. They are compared, summed and shown, never converted. [CheckAmount] knows the steps that
// Stripe wants; minimum amounts depend on the account and are left to Stripe. [Cap] is exact and
// rounds up.
//
// # The life of an intent
//
// A recorded event is an intent. Its [Status] moves only as [CanMove] allows, with a [StatusReason]
// that says why it stands there. Only charged is final. A success at Stripe is a fact about money,
// so charged can be reached from every other status.
package schema
