package main

import (
	"errors"
	"time"
)

// Record is what a case sends and reads. A nil key or value is Kafka's null.
type Record struct {
	Key, Value []byte
	Headers    []Header
	Timestamp  time.Time
	Partition  int32
	Offset     int64
}

// Header of a record; keys may repeat.
type Header struct {
	Key   string
	Value []byte
}

var (
	errTooLarge    = errors.New("the broker refused a record as too large")
	errTopicExists = errors.New("the topic is there already")
)

const (
	fromStart = -2
	fromEnd   = -1
	byKey     = -1
)

// How a producer is to send.
type How struct {
	Codec      string // none, gzip, snappy, lz4, zstd
	Acks       string // 0, 1, all
	Idempotent bool
	Limit      int32 // the client's own size limit, where raised
	Defaults   bool  // nothing configured but the address
}

// Client is what the cases need of a client. Bounds on time are the client's own business: about 15 seconds.
type Client interface {
	Create(topic string, partitions int32) error // errTopicExists
	Delete(topic string) error
	Topics() (map[string]int, error) // partition counts
	// Produce sends to one partition, or byKey, in one batch where the client allows; answers the offsets, nil with acks=0.
	Produce(topic string, records []Record, partition int32, how How) ([]int64, error) // errTooLarge
	// Read takes count records from an offset, fromStart or fromEnd; placed is called when the consumer stands there.
	Read(topic string, partition int32, start int64, count int, placed func() error) ([]Record, error)
	End(topic string, partition int32) (int64, error)
	// OffsetAt answers the first offset at or after a time, or -1.
	OffsetAt(topic string, partition int32, at time.Time) (int64, error)
	Committed(group, topic string, partition int32) (int64, error)
	// Join starts a member that hands each record to read before it commits it.
	Join(group, topic string, read func(Record)) (Member, error)
}

// Streamer is a client with an idempotent producer that sends without waiting.
type Streamer interface {
	// Stream sends records one by one to partition 0, in small batches, as many in flight as the client may have. acked is told the
	// offset of every record that the broker took, in the order that the client tells it; sent is called after each record is handed over.
	// Returns when all are settled, with the first failure.
	Stream(bootstrap, topic string, records []Record, sent func(n int) error, acked func(offset int64)) error
}

// Member of a group, running until it leaves.
type Member interface {
	Assigned() []int32
	// Leave commits what was read and leaves; answers what went wrong in the member's life.
	Leave() error
}
