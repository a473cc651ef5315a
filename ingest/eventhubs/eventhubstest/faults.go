package eventhubstest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

// Verdicts of hooks beside plain errors.
var (
	// ErrHold as the result of OnConnect, OnAttach or OnSend: never answer.
	ErrHold = errors.New("hold: never answer")
	// ErrLoseAck as the result of OnSend: store the events, then drop the connection before the acknowledgement, so that a
	// producer that retries publishes a second copy.
	ErrLoseAck = errors.New("lose the acknowledgement")
)

// Hooks decide on each operation; nil ones let it pass. All but Mutate run without the server's lock and may call its
// methods (not Close); one that blocks holds up its connection, and Close. An *amqp.Error goes to the client as it is,
// another error as amqp:internal-error. OnAttach sees the links to $cbs and $management too: their Hub is empty.
type Hooks struct {
	OnConnect    func(remote string) error
	OnAttach     func(Attach) error
	OnSend       func(Send) error
	OnToken      func(audience string) (status int, description string)          // 0 = go on, 401 = refuse
	OnManagement func(hub, partition string) (status int, description string)    // 0 = go on
	Mutate       func(d Delivery, annotations amqp.Annotations) amqp.Annotations // runs under the lock: no calls
}

// Send describes a producer's message, for Hooks.OnSend.
type Send struct {
	Hub, PartitionID, PartitionKey string
	Events                         int
}

// Delivery describes an event about to be delivered, for Hooks.Mutate.
type Delivery struct {
	Hub, PartitionID, ConsumerGroup string
	SequenceNumber                  int64
}

// SetHooks replaces the hooks.
func (s *Server) SetHooks(h Hooks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Hooks = h
}

// DropConnections cuts every connection without a word.
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.cut() // at once, so that who comes back does not meet its own old links
	}
}

// DetachReceivers ends the receivers of a partition, or of all partitions when it is empty, as the service does when it
// moves one. It returns how many.
func (s *Server) DetachReceivers(hubName, partitionID string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hub(hubName)
	if h == nil {
		return 0
	}
	return h.detachReceivers(partitionID, amqpError(amqp.ErrCondDetachForced, "The link was force detached by the broker."))
}

func (h *hub) detachReceivers(partitionID string, reason error) int {
	n := 0
	for _, p := range h.partitions {
		if partitionID != "" && p.id != partitionID {
			continue
		}
		for l := range p.readers {
			l.session.detachLink(l.handle, reason)
			n++
		}
	}
	return n
}

// AddPartitions gives a hub more partitions, empty ones.
func (s *Server) AddPartitions(hubName string, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hub(hubName)
	if h == nil || n < 1 || len(h.partitions)+n > maxPartitions {
		return fmt.Errorf("add %d partitions to hub %q: no such hub, or not 1 to %d partitions in all", n, hubName, maxPartitions)
	}
	h.grow(n)
	return nil
}

// Trim drops the events of a partition below a sequence number, as retention does.
func (s *Server) Trim(hubName, partitionID string, before int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partition(hubName, partitionID)
	if p == nil {
		return fmt.Errorf("trim: no partition %q in hub %q", partitionID, hubName)
	}
	s.held -= p.trim(before)
	return nil
}

// RecreateHub deletes a hub and makes it anew: no events, sequence numbers and offsets from 0, a later created_at, all its
// links detached.
func (s *Server) RecreateHub(hubName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hub(hubName)
	if h == nil {
		return fmt.Errorf("recreate: no hub %q", hubName)
	}
	reason := s.notFound(h.name)
	h.detachReceivers("", reason)
	for c := range s.conns {
		for _, sess := range c.sessions {
			for handle, l := range sess.receivers {
				if l.kind == linkEvents && strings.EqualFold(l.Hub, h.name) {
					sess.detachLink(handle, reason)
				}
			}
		}
	}
	for _, p := range h.partitions {
		s.held -= p.trim(p.end())
	}
	now := s.cfg.Now()
	if earliest := h.createdAt.Add(time.Millisecond); now.Before(earliest) {
		now = earliest
	}
	fresh := newHub(Hub{Name: h.name, Partitions: len(h.partitions)}, now)
	fresh.groups = h.groups
	s.hubs[strings.ToLower(h.name)] = fresh
	return nil
}

// FaultKind names a fault that can be scripted.
type FaultKind string

// Standing faults meet the next Times operations that match (0 = until cleared); the others happen at once.
const (
	FaultRefuseConnection FaultKind = "refuse_connection"
	FaultHoldConnection   FaultKind = "hold_connection"
	FaultRefuseAttach     FaultKind = "refuse_attach"
	FaultHoldAttach       FaultKind = "hold_attach"
	FaultRejectSend       FaultKind = "reject_send"
	FaultLoseAck          FaultKind = "lose_ack"
	FaultRefuseToken      FaultKind = "refuse_token"
	FaultRefuseRead       FaultKind = "refuse_management"
	FaultSpoilKey         FaultKind = "spoil_partition_key" // delivers a partition key that is a number
	FaultSilence          FaultKind = "silence"             // delivers no event, while links and counts are in order; not with Times

	FaultDropConnections FaultKind = "drop_connections"
	FaultDetachReceivers FaultKind = "detach_receivers"
	FaultAddPartitions   FaultKind = "add_partitions"
	FaultTrim            FaultKind = "trim"
	FaultRecreateHub     FaultKind = "recreate_hub"
	FaultClear           FaultKind = "clear" // of standing faults
)

// Fault is one step of a script. Empty Hub, Partition and SequenceNumber match everything.
type Fault struct {
	Kind           FaultKind `json:"kind"`
	Hub            string    `json:"hub,omitempty"`
	Partition      string    `json:"partition,omitempty"`
	SequenceNumber *int64    `json:"sequence_number,omitempty"` // spoil_partition_key: which; trim: the first one kept
	Times          int       `json:"times,omitempty"`
	Count          int       `json:"count,omitempty"`     // add_partitions
	Condition      string    `json:"condition,omitempty"` // of refusals; default com.microsoft:server-busy
	Description    string    `json:"description,omitempty"`
}

// Inject carries out a fault or sets it up.
func (s *Server) Inject(f Fault) error {
	switch f.Kind {
	case FaultDropConnections:
		s.DropConnections()
	case FaultDetachReceivers:
		s.DetachReceivers(f.Hub, f.Partition)
	case FaultAddPartitions:
		return s.AddPartitions(f.Hub, f.Count)
	case FaultTrim:
		if f.SequenceNumber == nil {
			return errors.New("fault trim: sequence_number is missing")
		}
		return s.Trim(f.Hub, f.Partition, *f.SequenceNumber)
	case FaultRecreateHub:
		return s.RecreateHub(f.Hub)
	case FaultClear:
		s.mu.Lock()
		s.standing = nil
		for c := range s.conns {
			c.poke() // of those that were silent
		}
		s.mu.Unlock()
	case FaultRefuseConnection, FaultHoldConnection, FaultRefuseAttach, FaultHoldAttach, FaultRejectSend, FaultLoseAck,
		FaultRefuseToken, FaultRefuseRead, FaultSpoilKey, FaultSilence:
		if f.Kind == FaultSilence && f.Times != 0 {
			return errors.New("fault silence: it lasts until it is cleared, times has no meaning")
		}
		s.mu.Lock()
		s.standing = append(s.standing, &f)
		s.mu.Unlock()
	default:
		return fmt.Errorf("fault %q is unknown", f.Kind)
	}
	return nil
}

// strike returns the first standing fault of these kinds that matches, and uses it up once. Called with mu held.
func (s *Server) strike(hubName, partitionID string, sequence int64, kinds ...FaultKind) *Fault {
	for i, f := range s.standing {
		if !slices.Contains(kinds, f.Kind) || f.Hub != "" && !strings.EqualFold(f.Hub, hubName) ||
			f.Partition != "" && f.Partition != partitionID ||
			f.Kind == FaultSpoilKey && f.SequenceNumber != nil && *f.SequenceNumber != sequence {
			continue
		}
		if f.Times == 1 {
			s.standing = slices.Delete(s.standing, i, i+1)
		} else if f.Times > 1 {
			f.Times--
		}
		return f
	}
	return nil
}

// judge turns the standing fault that matches into a hook's verdict.
func (s *Server) judge(hubName, partitionID string, kinds ...FaultKind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.strike(hubName, partitionID, 0, kinds...)
	if f == nil {
		return nil
	}
	switch f.Kind { //nolint:exhaustive // every other kind is a refusal
	case FaultHoldConnection, FaultHoldAttach:
		return ErrHold
	case FaultLoseAck:
		return ErrLoseAck
	}
	condition, description := amqp.ErrCond(f.Condition), f.Description
	if condition == "" {
		condition = "com.microsoft:server-busy"
	}
	if description == "" {
		description = "refused by a scripted fault"
	}
	return &amqp.Error{Condition: condition, Description: description}
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
	return s.judge("", "", FaultRefuseConnection, FaultHoldConnection)
}

func (s *Server) onAttach(a Attach) error {
	if hook := s.hooks().OnAttach; hook != nil {
		if err := hook(a); err != nil {
			return err
		}
	}
	if a.kind != linkEvents {
		return nil
	}
	return s.judge(a.Hub, a.PartitionID, FaultRefuseAttach, FaultHoldAttach)
}

func (s *Server) onSend(m Send) error {
	if hook := s.hooks().OnSend; hook != nil {
		if err := hook(m); err != nil {
			return err
		}
	}
	return s.judge(m.Hub, m.PartitionID, FaultRejectSend, FaultLoseAck)
}

func (s *Server) onToken(audience string) (status int, description string) {
	if hook := s.hooks().OnToken; hook != nil {
		if status, description := hook(audience); status != 0 {
			return status, description
		}
	}
	if err := s.judge("", "", FaultRefuseToken); err != nil {
		return http.StatusUnauthorized, err.Error()
	}
	return 0, ""
}

func (s *Server) onManagement(hubName, partitionID string) (status int, description string) {
	if hook := s.hooks().OnManagement; hook != nil {
		if status, description := hook(hubName, partitionID); status != 0 {
			return status, description
		}
	}
	if err := s.judge(hubName, partitionID, FaultRefuseRead); err != nil {
		return http.StatusServiceUnavailable, err.Error()
	}
	return 0, ""
}

// mutate returns other annotations for a delivery, or nil. Called with mu held.
func (s *Server) mutate(l *sendLink, e *stored) amqp.Annotations {
	name, id := l.partition.hub.name, l.partition.id
	var out amqp.Annotations
	if s.strike(name, id, e.sequence, FaultSpoilKey) != nil {
		out = e.annotationMap()
		out[annotationKey] = int64(7)
	}
	if hook := s.cfg.Hooks.Mutate; hook != nil {
		if out == nil {
			out = e.annotationMap()
		}
		out = hook(Delivery{Hub: name, PartitionID: id, ConsumerGroup: l.ConsumerGroup, SequenceNumber: e.sequence}, out)
	}
	return out
}
