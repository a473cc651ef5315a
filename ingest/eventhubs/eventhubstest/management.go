package eventhubstest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/Azure/go-amqp"
)

// serveRequest answers one request on $cbs or $management over the client's reply link.
func (c *conn) serveRequest(l *receiveLink, d delivery) error {
	request, err := decodeRequest(d.payload)
	if err != nil {
		c.settle(l, d, amqpError(amqp.ErrCondDecodeError, "%v", err))
		return nil
	}
	c.settle(l, d, nil)
	var status int
	var description string
	var value any
	if l.kind == linkCBS {
		status, description = c.putToken(request)
	} else {
		status, description, value = c.server.read(request)
	}
	reply := &amqp.Message{
		Properties: &amqp.MessageProperties{CorrelationID: request.Properties.MessageID},
		ApplicationProperties: map[string]any{
			"status-code": int32(status), "status-description": description, //nolint:gosec // HTTP status codes
		},
		Value: value,
	}
	encoded, err := reply.MarshalBinary()
	if err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	c.reply(l.kind, *request.Properties.ReplyTo, encoded)
	return nil
}

// decodeRequest checks the message's encoding before go-amqp decodes it, whose recursion knows no bound.
func decodeRequest(payload []byte) (*amqp.Message, error) {
	for rest := payload; len(rest) > 0; {
		_, _, after, err := splitDescribed(rest)
		if err != nil {
			return nil, fmt.Errorf("request section: %w", err)
		}
		rest = after
	}
	var m amqp.Message
	if err := m.UnmarshalBinary(payload); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if m.Properties == nil || m.Properties.MessageID == nil || m.Properties.ReplyTo == nil {
		return nil, fmt.Errorf("request without message-id or reply-to")
	}
	return &m, nil
}

func (c *conn) reply(kind linkKind, replyTo string, encoded []byte) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for _, l := range c.senders {
		if l.kind == kind && l.replyTo == replyTo && l.partition == nil {
			if len(l.replies) >= maxQueueMessages {
				c.server.counters.SlowDropped++
				c.drop()
				return
			}
			l.replies = append(l.replies, encoded)
			c.poke()
			return
		}
	}
}

// putToken checks a token and says the status that the service would.
func (c *conn) putToken(request *amqp.Message) (status int, description string) {
	s := c.server
	if request.ApplicationProperties["operation"] != "put-token" {
		return http.StatusBadRequest, "the only operation is put-token"
	}
	audience, _ := request.ApplicationProperties["name"].(string)
	status, description = s.onToken(audience)
	if status == 0 {
		status, description = http.StatusAccepted, "Accepted"
		kind, _ := request.ApplicationProperties["type"].(string)
		value, _ := request.Value.(string)
		if err := s.checkToken(Token{Audience: audience, Type: kind, Value: value}); err != nil {
			status, description = http.StatusUnauthorized, err.Error()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if status >= http.StatusMultipleChoices {
		s.counters.TokensRefused++
		return status, description
	}
	s.counters.Tokens++
	c.authorized = true
	return status, description
}

func (s *Server) checkToken(token Token) error {
	switch {
	case s.cfg.CheckToken != nil:
		return s.cfg.CheckToken(token)
	case s.cfg.RequireSAS:
		return s.checkSAS(token.Value)
	}
	return nil
}

// checkSAS verifies a shared access signature over resource and expiry.
func (s *Server) checkSAS(token string) error {
	rest, ok := strings.CutPrefix(token, "SharedAccessSignature ")
	if !ok {
		return fmt.Errorf("MalformedToken: not a shared access signature")
	}
	parts := map[string]string{}
	for pair := range strings.SplitSeq(rest, "&") {
		k, v, _ := strings.Cut(pair, "=")
		parts[k] = v
	}
	mac := hmac.New(sha256.New, []byte(s.cfg.Key))
	_, _ = mac.Write([]byte(parts["sr"] + "\n" + parts["se"]))
	given, err := url.QueryUnescape(parts["sig"])
	want := base64.StdEncoding.EncodeToString(mac.Sum(nil))
	if err != nil || parts["skn"] != s.cfg.KeyName || !hmac.Equal([]byte(given), []byte(want)) {
		return fmt.Errorf("InvalidSignature: The token has an invalid signature.") //nolint:staticcheck,revive // the service's words
	}
	expiry, err := strconv.ParseInt(parts["se"], 10, 64)
	if err != nil || expiry < s.cfg.Now().Unix() {
		return fmt.Errorf("ExpiredToken: The token is expired.") //nolint:staticcheck,revive // the service's words
	}
	return nil
}

// read answers READ of a hub or a partition.
func (s *Server) read(request *amqp.Message) (status int, description string, value any) {
	name, _ := request.ApplicationProperties["name"].(string)
	id, _ := request.ApplicationProperties["partition"].(string)
	if status, description := s.onManagement(name, id); status != 0 {
		return status, description, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hub(name)
	if h == nil {
		return http.StatusNotFound, s.notFound(name).Description, nil
	}
	switch request.ApplicationProperties["type"] {
	case "com.microsoft:eventhub":
		ids := make([]string, 0, len(h.partitions))
		for _, p := range h.partitions {
			ids = append(ids, p.id)
		}
		return http.StatusOK, "OK", map[string]any{
			"name": h.name, "type": "com.microsoft:eventhub", "created_at": h.createdAt, "partition_count": int32(len(ids)), //nolint:gosec // at most maxPartitions
			"partition_ids": ids, "georeplication_factor": int32(1),
		}
	case "com.microsoft:partition":
		p := h.partition(id)
		if p == nil {
			return http.StatusNotFound, s.notFound(name + "/Partitions/" + id).Description, nil
		}
		out := map[string]any{"name": h.name, "type": "com.microsoft:partition", "partition": id}
		maps.Copy(out, p.properties())
		return http.StatusOK, "OK", out
	default:
		return http.StatusBadRequest, "unknown entity type", nil
	}
}

// properties says where the log begins and ends; -1 stands for "none yet".
func (p *partition) properties() map[string]any {
	return map[string]any{
		"begin_sequence_number":         p.first,
		"last_enqueued_sequence_number": p.end() - 1,
		"last_enqueued_offset":          p.lastOffset(),
		"last_enqueued_time_utc":        p.last.enqueued,
		"is_partition_empty":            len(p.events) == 0,
	}
}
