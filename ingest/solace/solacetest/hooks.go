package solacetest

import (
	"errors"
	"fmt"
	"net/http"
)

// Verdicts of hooks, beside a *Refusal and plain errors.
var (
	// ErrHold as the result of OnConnect, OnLogin, OnBind or OnPublish: never answer.
	ErrHold = errors.New("hold: never answer")
	// ErrLose as the result of OnAck or OnPublish: as if the frame had never come.
	ErrLose = errors.New("lose the frame")
	// ErrDrop: cut the connection before the frame is processed or sent.
	ErrDrop = errors.New("drop the connection")
	// ErrDropAfter as the result of OnAck, OnPublish or OnDeliver: cut the connection after the frame was processed or sent,
	// and before any answer.
	ErrDropAfter = errors.New("drop the connection afterwards")
)

// Refusal is the broker's "no". The client derives its subcode from Text, letter by letter.
type Refusal struct {
	Code uint32 `json:"code"`
	Text string `json:"text"`
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s", r.Code, r.Text) }

// refusalOf is what the client is told; nil when it is told nothing.
func refusalOf(err error) *Refusal {
	if err == nil || errors.Is(err, ErrHold) || errors.Is(err, ErrLose) || errors.Is(err, ErrDrop) || errors.Is(err, ErrDropAfter) {
		return nil
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return &Refusal{Code: http.StatusServiceUnavailable, Text: err.Error()}
}

// Hooks decide on each operation; nil ones let it pass. They run without the server's lock and may call its methods (not
// Close); one that blocks holds up its connection, and Close. An error that is no verdict refuses with 503 and its text; on
// OnAck and OnDeliver it drops.
type Hooks struct {
	OnConnect func(remote string) error
	OnLogin   func(Login) error
	OnBind    func(Bind) error
	OnAck     func(Ack) error // frames with application acknowledgements only
	OnPublish func(Publication) error
	OnDeliver func(Delivery) error // before the frame is written
}

// Bind describes a client's wish to consume, for Hooks.OnBind.
type Bind struct {
	Client, Queue string
}

// Ack describes one frame of application acknowledgements, for Hooks.OnAck.
type Ack struct {
	Client, Queue string // Queue is empty when the flow is gone
	Messages      []AckedMessage
}

// AckedMessage is one message that an acknowledgement would take off its queue, or give back.
type AckedMessage struct {
	ID                   uint64
	ApplicationMessageID string
	Outcome              string // accepted, failed, released or rejected
}

// Publication describes a client's message, for Hooks.OnPublish.
type Publication struct {
	Client, Topic        string
	Direct               bool
	ApplicationMessageID string
}

// Delivery describes a message about to be sent, for Hooks.OnDeliver.
type Delivery struct {
	Client, Queue        string
	ID                   uint64 // of the message on its queue, stable over deliveries
	ApplicationMessageID string
	Deliveries           int // with this one
}

// SetHooks replaces the hooks.
func (s *Server) SetHooks(h Hooks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Hooks = h
}

func (s *Server) hooks() Hooks {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Hooks
}

func (s *Server) onConnect(remote string) error {
	if hook := s.hooks().OnConnect; hook != nil {
		if err := hook(remote); err != nil {
			return err
		}
	}
	return s.judge("", "", FaultHoldConnection)
}

func (s *Server) onLogin(l Login) error {
	if hook := s.hooks().OnLogin; hook != nil {
		if err := hook(l); err != nil {
			return err
		}
	}
	return s.judge("", l.Client, FaultRefuseLogin, FaultHoldLogin)
}

func (s *Server) onBind(b Bind) error {
	if hook := s.hooks().OnBind; hook != nil {
		if err := hook(b); err != nil {
			return err
		}
	}
	return s.judge(b.Queue, b.Client, FaultRefuseBind, FaultHoldBind)
}

func (s *Server) onPublish(p Publication) error {
	if hook := s.hooks().OnPublish; hook != nil {
		if err := hook(p); err != nil {
			return err
		}
	}
	return s.judge("", p.Client, FaultRefusePublish, FaultLosePublish, FaultDropAfterPublish)
}

func (s *Server) onDeliver(d Delivery) error {
	if hook := s.hooks().OnDeliver; hook != nil {
		return hook(d)
	}
	return nil
}

// judgeAck asks hook and faults about a frame of acknowledgements.
func (c *conn) judgeAck(flowID uint32, ranges []ackRange) error {
	s := c.server
	a, hook := c.describeAck(flowID, ranges)
	var verdict error
	if hook != nil {
		verdict = hook(a)
	}
	if verdict == nil {
		verdict = s.judge(a.Queue, a.Client, FaultLoseAcks, FaultDropBeforeAck, FaultDropAfterAck)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counters.AckFrames++
	if verdict != nil && !errors.Is(verdict, ErrDropAfter) {
		s.counters.AckFramesLost++
	}
	return verdict
}

func (c *conn) describeAck(flowID uint32, ranges []ackRange) (Ack, func(Ack) error) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	hook := c.server.cfg.Hooks.OnAck
	a := Ack{Client: c.client}
	f := c.flow(flowID)
	if f == nil {
		return a, hook
	}
	a.Queue = f.queue.Name
	if hook == nil {
		return a, nil
	}
	for _, r := range ranges {
		for i := f.at(r.min); i < len(f.sent) && f.sent[i].id <= r.max; i++ {
			if d := f.sent[i]; d.entry != nil {
				a.Messages = append(a.Messages, AckedMessage{d.entry.id, d.entry.message.info.applicationID, r.outcome.String()})
			}
		}
	}
	return a, hook
}

// describe is for Hooks.OnDeliver; called with mu held, after the delivery was counted.
func (f *flow) describe(e *entry) Delivery {
	return Delivery{
		Client: f.conn.client, Queue: f.queue.Name, ID: e.id, ApplicationMessageID: e.message.info.applicationID, Deliveries: e.deliveries,
	}
}
