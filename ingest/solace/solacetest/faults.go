package solacetest

import (
	"fmt"
	"net/http"
	"slices"
)

// FaultKind names a fault that can be scripted.
type FaultKind string

// Standing faults meet the next Times operations that match (0 = until cleared), after letting After pass. The others, from
// FaultDropConnections on, happen at once.
const (
	FaultRefuseConnection    FaultKind = "refuse_connection"     // reset as soon as it is made
	FaultHoldConnection      FaultKind = "hold_connection"       // accepted, then silence
	FaultRefuseLogin         FaultKind = "refuse_login"          // with Code and Text
	FaultHoldLogin           FaultKind = "hold_login"            // never answered
	FaultHoldKeepAlive       FaultKind = "hold_keep_alive"       // never answered; all else goes on
	FaultRefuseBind          FaultKind = "refuse_bind"           // with Code and Text
	FaultHoldBind            FaultKind = "hold_bind"             // never answered
	FaultHoldUnbind          FaultKind = "hold_unbind"           // neither done nor answered
	FaultLoseAcks            FaultKind = "lose_acks"             // a frame of acknowledgements counts for nothing
	FaultDropBeforeAck       FaultKind = "drop_before_ack"       // the connection is cut, the frame counts for nothing
	FaultDropAfterAck        FaultKind = "drop_after_ack"        // the frame is processed, then the connection is cut
	FaultDropAfterAcks       FaultKind = "drop_after_acks"       // cut once After messages are acked; the rest of the frame is lost
	FaultDropAfterDeliveries FaultKind = "drop_after_deliveries" // cut once After messages are sent
	FaultDuplicate           FaultKind = "duplicate_delivery"    // a message is sent twice, the second flagged as redelivered
	FaultSpoil               FaultKind = "spoil"                 // a message is sent damaged, as Spoil says
	FaultRefusePublish       FaultKind = "refuse_publish"        // with Code and Text; a direct message vanishes
	FaultLosePublish         FaultKind = "lose_publish"          // as if the message had never come
	FaultDropAfterPublish    FaultKind = "drop_after_publish"    // stored, then the connection is cut before the answer

	FaultDropConnections FaultKind = "drop_connections"
	FaultMute            FaultKind = "mute"   // the open connections read on, but do and say nothing more
	FaultUnbind          FaultKind = "unbind" // by the broker, with Code and Text
	FaultShutQueue       FaultKind = "shut_queue"
	FaultOpenQueue       FaultKind = "open_queue"
	FaultDeleteQueue     FaultKind = "delete_queue"
	FaultReplay          FaultKind = "replay" // of all that Config.ReplayLog kept of a queue
	FaultFailOver        FaultKind = "fail_over"
	FaultClear           FaultKind = "clear" // of standing faults
)

// maxStanding bounds the faults that wait to strike.
const maxStanding = 1000

// Refusals that the server says by itself too.
var (
	refusalUnknownQueue = &Refusal{Code: http.StatusServiceUnavailable, Text: "Unknown Queue"}
	refusalShutdown     = &Refusal{Code: http.StatusServiceUnavailable, Text: "Queue Shutdown"}
)

// Fault is one step of a script. Empty Queue and Client match everything.
type Fault struct {
	Kind   FaultKind `json:"kind"`
	Queue  string    `json:"queue,omitempty"`
	Client string    `json:"client,omitempty"`
	After  int       `json:"after,omitempty"`
	Times  int       `json:"times,omitempty"`
	Code   uint32    `json:"code,omitempty"` // of refusals; default 503
	Text   string    `json:"text,omitempty"` // of refusals; default "Service Unavailable"
	Spoil  SpoilKind `json:"spoil,omitempty"`
}

// Inject carries out a fault or sets it up.
func (s *Server) Inject(f Fault) error {
	found := true
	switch f.Kind {
	case FaultDropConnections:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dropAll(f.Client)
	case FaultMute:
		s.Mute(f.Client)
	case FaultUnbind:
		s.Unbind(f.Queue, *f.refusal())
	case FaultShutQueue:
		found = s.ShutQueue(f.Queue)
	case FaultOpenQueue:
		found = s.OpenQueue(f.Queue)
	case FaultDeleteQueue:
		found = s.DeleteQueue(f.Queue)
	case FaultReplay:
		return s.Replay(f.Queue)
	case FaultFailOver:
		s.FailOver()
	case FaultClear:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.standing = nil
	case FaultRefuseConnection, FaultHoldConnection, FaultRefuseLogin, FaultHoldLogin, FaultHoldKeepAlive, FaultRefuseBind,
		FaultHoldBind, FaultHoldUnbind, FaultLoseAcks, FaultDropBeforeAck, FaultDropAfterAck, FaultDropAfterAcks,
		FaultDropAfterDeliveries, FaultDuplicate, FaultSpoil, FaultRefusePublish, FaultLosePublish, FaultDropAfterPublish:
		return s.stand(f)
	default:
		return fmt.Errorf("fault %q is unknown: go doc ./ingest/solace/solacetest FaultKind lists them", f.Kind)
	}
	if !found {
		return fmt.Errorf("fault %s: there is no queue %q", f.Kind, f.Queue)
	}
	return nil
}

// stand sets up a standing fault.
func (s *Server) stand(f Fault) error {
	if f.Kind == FaultSpoil && !slices.Contains(spoilKinds(), f.Spoil) {
		return fmt.Errorf("fault spoil: %q is unknown", f.Spoil)
	}
	if f.Times < 0 || f.After < 0 {
		return fmt.Errorf("fault %s: times %d or after %d is negative", f.Kind, f.Times, f.After)
	}
	if f.Kind == FaultDropAfterAcks || f.Kind == FaultDropAfterDeliveries {
		f.After = max(f.After-1, 0) // the one that strikes is the last to pass
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.standing) == maxStanding {
		return fmt.Errorf("fault %s: there are %d standing faults already", f.Kind, maxStanding)
	}
	s.standing = append(s.standing, &f)
	return nil
}

func (f Fault) refusal() *Refusal {
	r := &Refusal{Code: f.Code, Text: f.Text}
	if r.Code == 0 {
		r.Code = http.StatusServiceUnavailable
	}
	if r.Text == "" {
		r.Text = "Service Unavailable"
	}
	return r
}

// Mute makes the open connections of a client, or all when it is empty, say nothing more, as a broker that hangs.
func (s *Server) Mute(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if client == "" || c.client == client {
			c.mute = true
		}
	}
}

// strike returns the first standing fault of these kinds that matches, and uses it up once. Called with mu held.
func (s *Server) strike(queueName, client string, kinds ...FaultKind) *Fault {
	for i, f := range s.standing {
		if !slices.Contains(kinds, f.Kind) || f.Queue != "" && f.Queue != queueName || f.Client != "" && f.Client != client {
			continue
		}
		if f.After > 0 {
			f.After--
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
func (s *Server) judge(queueName, client string, kinds ...FaultKind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.strike(queueName, client, kinds...)
	if f == nil {
		return nil
	}
	switch f.Kind { //nolint:exhaustive // every other kind is a refusal
	case FaultHoldConnection, FaultHoldLogin, FaultHoldBind:
		return ErrHold
	case FaultLoseAcks, FaultLosePublish:
		return ErrLose
	case FaultDropBeforeAck:
		return ErrDrop
	case FaultDropAfterAck, FaultDropAfterPublish:
		return ErrDropAfter
	}
	return f.refusal()
}
