package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func restingState() state {
	return state{
		Expect: published{Events: 10, Objects: 10, Intents: 10, OverSolace: 3}, Sent: 10, Spooled: 3, Statuses: map[string]int{"charged": 8, "pending": 2}, AtEnd: map[string]bool{mainGroup: true},
		Reasons: map[string]int{"charged charged": 8, "pending conflict": 1, "pending no_run": 1},
	}
}

func TestRestIsNotSeenTooEarly(t *testing.T) {
	t.Parallel()
	require.True(t, atRest(restingState()))
	for name, c := range map[string]struct {
		stir func(s *state)
		says string
	}{
		"still publishing":     {func(s *state) { s.Sent = 9 }, "9 of 10 events are published"},
		"hub not read":         {func(s *state) { s.AtEnd = nil }, "have not recorded the whole hub"},
		"not all over Solace":  {func(s *state) { s.Spooled = 2 }, "of 3 messages over Solace 2 are published"},
		"not acknowledged":     {func(s *state) { s.Waiting = 1 }, "1 not acknowledged"},
		"call on its way":      {func(s *state) { s.Statuses["charging"] = 1; s.Reasons = nil }, "1 intents are charging"},
		"queued":               {func(s *state) { s.Reasons["pending queued"] = 3 }, "3 intents are pending (queued)"},
		"reasons not yet read": {func(s *state) { s.Reasons = nil }, "not read yet"},
		"database away":        {func(s *state) { s.Away = errors.New("refused") }, "the database is away: refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := restingState()
			c.stir(&s)
			require.False(t, atRest(s))
			require.Contains(t, strings.Join(restless(s), "\n"), c.says)
		})
	}
}

func TestPlainProgressDoesNotRepeatItself(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := newDisplay(&out)
	for range 5 {
		d.progress(restingState())
	}
	d.say("something happens")
	d.end()
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
	require.NotContains(t, out.String(), "\x1b")
}

func TestBarsAreRemovedFromATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := newDisplay(&out)
	d.terminal = true
	d.progress(restingState())
	d.say("something happens")
	d.progress(restingState())
	d.end()
	d.progress(restingState()) // a late look
	require.Equal(t, []string{"something happens"}, screen(out.String()))
}

// screen is what a terminal shows after the two sequences that the display uses.
func screen(written string) []string {
	var lines []string
	for len(written) > 0 {
		if strings.HasPrefix(written, clearUp) {
			lines, written = lines[:len(lines)-1], written[len(clearUp):]
			continue
		}
		line, rest, _ := strings.Cut(written, "\n")
		lines, written = append(lines, line), rest
	}
	return lines
}

func TestBarFitsANarrowTerminal(t *testing.T) {
	t.Parallel()
	require.Less(t, len(bar("published", maxEvents, maxEvents, "1000000 charged, 100000 waiting")), 96)
	require.Less(t, len(bar("finished", 100_000, 100_000, "100000 charged, 1000 waiting")), 80)
	require.NotPanics(t, func() { bar("finished", 3, 0, "") })
}
