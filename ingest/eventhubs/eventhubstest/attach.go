package eventhubstest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/Azure/go-amqp"
)

// attach answers a client's attach with a link, a refusal (a link without source and target, detached at once) or not at
// all.
func (c *conn) attach(f frame) error {
	req, err := parseAttach(f)
	if err != nil {
		return err
	}
	refusal := c.server.onAttach(req.Attach)
	if errors.Is(refusal, ErrHold) {
		return nil
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	sess := c.sessions[f.channel]
	if sess == nil {
		return fmt.Errorf("attach on channel %d without a session", f.channel)
	}
	if sess.senders[req.handle] != nil || sess.receivers[req.handle] != nil || req.handle > maxHandle {
		return fmt.Errorf("attach of handle %d, which is in use or above %d", req.handle, maxHandle)
	}
	if refusal == nil {
		refusal = c.link(sess, req)
	}
	if refusal != nil {
		c.server.counters.Refused++
		c.queue(sess.channel, req.reply(nil, nil, 0))
		sess.detachLink(req.handle, refusal)
		return nil
	}
	c.server.counters.Attaches++
	return nil
}

// Attach describes a client's wish for a link, for Hooks.OnAttach.
type Attach struct {
	Address       string // as sent
	Hub           string
	PartitionID   string // empty for a producer that leaves the choice to the service
	ConsumerGroup string // as sent; empty for producers
	Receiver      bool   // the client receives
	ReceiverName  string
	Epoch         *int64
	Selector      string
	kind          linkKind
}

type linkKind int

const (
	linkEvents linkKind = iota
	linkCBS
	linkManagement
	linkUnknown
)

type attachRequest struct {
	Attach
	name           string
	handle         uint32
	receiver       bool // the client's role
	sendSettle     raw
	receiveSettle  raw
	source, target raw
	replyTo        string // target address of a receiver
}

func parseAttach(f frame) (attachRequest, error) {
	req := attachRequest{
		name: f.fields.string(0), receiver: f.fields.bool(2), sendSettle: f.fields.raw(3), receiveSettle: f.fields.raw(4),
		source: f.fields.raw(5), target: f.fields.raw(6),
	}
	var ok bool
	if req.handle, ok = f.fields.uint32(1); !ok {
		return req, errors.New("attach without a handle")
	}
	source, target := f.fields.composite(5), f.fields.composite(6)
	req.Receiver = req.receiver
	if req.receiver {
		req.Address, req.replyTo = source.string(0), target.string(0)
		req.Selector = selectorOf(source)
	} else {
		req.Address = target.string(0)
	}
	properties := f.fields.mapping(13)
	if epoch, ok := intOf(properties["com.microsoft:epoch"]); ok {
		req.Epoch = &epoch
	}
	req.ReceiverName, _ = stringOf(properties["com.microsoft:receiver-name"])
	req.parseAddress()
	return req, nil
}

func selectorOf(source fields) string {
	filter := source.mapping(7)["apache.org:selector-filter:string"]
	if len(filter) > 0 && filter[0] == codeDescribed {
		if _, value, err := splitValue(filter[1:]); err == nil {
			filter = value
		}
	}
	s, _ := stringOf(filter)
	return s
}

// parseAddress reads hub, hub/Partitions/ID, hub/ConsumerGroups/GROUP/Partitions/ID, $cbs and [hub/]$management.
func (a *Attach) parseAddress() {
	parts := strings.Split(strings.Trim(a.Address, "/"), "/")
	last := strings.ToLower(parts[len(parts)-1])
	switch {
	case last == "$cbs":
		a.kind = linkCBS
	case last == "$management":
		a.kind = linkManagement
	case len(parts) == 1 && !a.Receiver:
		a.Hub = parts[0]
	case len(parts) == 3 && !a.Receiver && strings.EqualFold(parts[1], "Partitions"):
		a.Hub, a.PartitionID = parts[0], parts[2]
	case len(parts) == 5 && a.Receiver && strings.EqualFold(parts[1], "ConsumerGroups") &&
		strings.EqualFold(parts[3], "Partitions"):
		a.Hub, a.ConsumerGroup, a.PartitionID = parts[0], parts[2], parts[4]
	default:
		a.kind = linkUnknown
	}
}

// reply is our attach: roles swapped, settle modes as asked, which go-amqp insists on.
func (r attachRequest) reply(source, target raw, maxMessageBytes int64) composite {
	var initial, size any
	if r.receiver {
		initial = uint32(0)
	} else if maxMessageBytes > 0 {
		size = ulong(maxMessageBytes)
	}
	return composite{performAttach, list{
		r.name, r.handle, !r.receiver, r.sendSettle, r.receiveSettle, source, target, nil, nil, initial, size,
	}}
}

// link checks the request, makes the link and queues the answer; the error says why not. Called with Server.mu held.
func (c *conn) link(sess *session, req attachRequest) error {
	s := c.server
	var p *partition
	if req.kind == linkUnknown {
		return s.notFound(req.Address)
	}
	if req.kind == linkEvents {
		if s.cfg.RequireSAS && !c.authorized {
			return amqpError(amqp.ErrCondUnauthorizedAccess, "Unauthorized access. 'Listen' or 'Send' claim(s) are required to perform this operation.")
		}
		h := s.hub(req.Hub)
		if h == nil {
			return s.notFound(req.Hub)
		}
		if req.Receiver && !h.groups[strings.ToLower(req.ConsumerGroup)] {
			return s.notFound(h.name + ":consumergroup:" + req.ConsumerGroup)
		}
		if p = h.partition(req.PartitionID); p == nil && (req.Receiver || req.PartitionID != "") {
			return amqpError("com.microsoft:argument-out-of-range",
				"The specified partition is invalid for an EventHub partition sender or receiver. It should be between 0 and %d.", len(h.partitions)-1)
		}
	}
	if req.receiver {
		return c.newSendLink(sess, req, p)
	}
	c.queue(sess.channel, req.reply(req.source, req.target, s.cfg.MaxMessageBytes))
	l := &receiveLink{session: sess, handle: req.handle, Attach: req.Attach, credit: linkCredit}
	sess.receivers[req.handle] = l
	c.queue(sess.channel, sess.flowFrame(l.handle, l.deliveryCount, l.credit, false))
	return nil
}

// notFound is the service's answer for an entity it does not have; called with Server.mu held or not.
func (s *Server) notFound(entity string) *amqp.Error {
	return amqpError(amqp.ErrCondNotFound, "The messaging entity 'sb://%s/%s' could not be found.", s.Addr(), entity)
}

// newSendLink makes the link of a receiving client; an epoch that wins detaches those that lose.
func (c *conn) newSendLink(sess *session, req attachRequest, p *partition) error {
	l := &sendLink{session: sess, handle: req.handle, Attach: req.Attach, replyTo: req.replyTo, partition: p}
	if p != nil {
		next, err := p.position(req.Selector)
		if err != nil {
			return err
		}
		l.next = next
		losers, err := p.contend(l)
		if err != nil {
			return err
		}
		for _, other := range losers {
			c.server.counters.Stolen++
			other.session.detachLink(other.handle, amqpError("amqp:link:stolen",
				"New receiver '%s' with higher epoch of '%d' is created hence current receiver '%s' with epoch '%s' is getting disconnected. "+
					"If you are recreating the receiver, make sure a higher epoch is used.", l.ReceiverName, *l.Epoch, other.ReceiverName, epochText(other.Epoch)))
		}
		p.readers[l] = true
		c.server.counters.Receivers++
	}
	sess.senders[req.handle] = l
	c.senders = append(c.senders, l)
	c.queue(sess.channel, req.reply(req.source, req.target, 0))
	return nil
}

func epochText(epoch *int64) string {
	if epoch == nil {
		return "none"
	}
	return fmt.Sprint(*epoch)
}

// contend compares epochs with the group's receivers of the partition: a new epoch that is not lower wins.
func (p *partition) contend(l *sendLink) (losers []*sendLink, err error) {
	plain := 0
	for other := range p.readers {
		switch {
		case !strings.EqualFold(other.ConsumerGroup, l.ConsumerGroup):
		case other.Epoch != nil && (l.Epoch == nil || *l.Epoch < *other.Epoch):
			return nil, amqpError("amqp:link:stolen",
				"Receiver '%s' with a higher epoch '%d' already exists. Receiver '%s' with epoch %s cannot be created. "+
					"Make sure you are creating receiver with increasing epoch value to ensure connectivity, or ensure all old epoch receivers are closed or disconnected.",
				other.ReceiverName, *other.Epoch, l.ReceiverName, epochText(l.Epoch))
		case l.Epoch != nil:
			losers = append(losers, other)
		default:
			plain++
		}
	}
	if plain >= maxPlainReceivers {
		return nil, amqpError(amqp.ErrCondResourceLimitExceeded,
			"Exceeded the maximum number of allowed receivers per partition in a consumer group which is %d.", maxPlainReceivers)
	}
	return losers, nil
}
