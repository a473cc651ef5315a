package eventhubs

// Reader is a reader of a partition, for tests that do to it what its owner must not.
type Reader = reader

// Readers are those of the Processor that runs, in no order.
func (s *Source) Readers() []*Reader {
	s.mu.Lock()
	current := s.current
	s.mu.Unlock()
	if current == nil {
		return nil
	}
	return current.reading()
}

// Close closes the reader's partition client, as the reader itself has done when it has ended.
func (r *reader) Close() { r.close() }
