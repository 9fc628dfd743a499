package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type franz struct {
	bootstrap string
	client    *kgo.Client
	admin     *kadm.Client
}

func newFranz(bootstrap string) (Client, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		return nil, err
	}
	return &franz{bootstrap, client, kadm.NewClient(client)}, nil
}

func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 15*time.Second)
}

func (f *franz) Create(topic string, partitions int32) error {
	ctx, done := bounded()
	defer done()
	answer, err := f.admin.CreateTopic(ctx, partitions, 1, nil, topic)
	if errors.Is(answer.Err, kerr.TopicAlreadyExists) {
		return errTopicExists
	}
	return errors.Join(err, answer.Err)
}

func (f *franz) Delete(topic string) error {
	ctx, done := bounded()
	defer done()
	answer, err := f.admin.DeleteTopic(ctx, topic)
	return errors.Join(err, answer.Err)
}

func (f *franz) Topics() (map[string]int, error) {
	ctx, done := bounded()
	defer done()
	listed, err := f.admin.ListTopics(ctx)
	counts := map[string]int{}
	for name, topic := range listed {
		if topic.Err == nil {
			counts[name] = len(topic.Partitions)
		}
	}
	return counts, err
}

func (f *franz) Produce(topic string, records []Record, partition int32, how How) ([]int64, error) {
	options := []kgo.Opt{kgo.SeedBrokers(f.bootstrap), kgo.AllowAutoTopicCreation()}
	if partition != byKey {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	if !how.Defaults {
		codecs := map[string]kgo.CompressionCodec{
			"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
			"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
		}
		acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
		options = append(options, kgo.ProducerBatchCompression(codecs[how.Codec]), kgo.RequiredAcks(acks[how.Acks]),
			kgo.ProducerLinger(50*time.Millisecond))
		if !how.Idempotent {
			options = append(options, kgo.DisableIdempotentWrite())
		}
		if how.Limit > 0 {
			options = append(options, kgo.ProducerBatchMaxBytes(how.Limit))
		}
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, done := bounded()
	defer done()
	out := make([]*kgo.Record, len(records))
	for n, record := range records {
		out[n] = &kgo.Record{Topic: topic, Partition: max(partition, 0), Key: record.Key, Value: record.Value, Timestamp: record.Timestamp}
		for _, header := range record.Headers {
			out[n].Headers = append(out[n].Headers, kgo.RecordHeader(header))
		}
	}
	answers := client.ProduceSync(ctx, out...)
	if err := answers.FirstErr(); err != nil {
		if errors.Is(err, kerr.MessageTooLarge) {
			return nil, errTooLarge
		}
		return nil, err
	}
	var offsets []int64
	for _, answer := range answers {
		offsets = append(offsets, answer.Record.Offset)
	}
	return offsets, nil
}

func (f *franz) Stream(bootstrap, topic string, records []Record, sent func(int) error, acked func(int64)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(700), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(1_000),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, done := context.WithTimeout(context.Background(), 120*time.Second)
	defer done()
	var lock sync.Mutex
	var failure error
	for n, record := range records {
		// Waits while too many are buffered.
		client.Produce(ctx, &kgo.Record{Topic: topic, Key: record.Key, Value: record.Value}, func(taken *kgo.Record, err error) {
			if err == nil {
				acked(taken.Offset)
				return
			}
			lock.Lock()
			defer lock.Unlock()
			failure = errors.Join(failure, err)
		})
		if err := sent(n); err != nil {
			return err
		}
	}
	err = client.Flush(ctx)
	lock.Lock()
	defer lock.Unlock()
	return errors.Join(failure, err)
}

func fromFranz(record *kgo.Record) Record {
	out := Record{Key: record.Key, Value: record.Value, Timestamp: record.Timestamp, Partition: record.Partition, Offset: record.Offset}
	for _, header := range record.Headers {
		out.Headers = append(out.Headers, Header(header))
	}
	return out
}

func (f *franz) Read(topic string, partition int32, start int64, count int, placed func() error) ([]Record, error) {
	ctx, done := bounded()
	defer done()
	if start == fromEnd {
		// The end is asked for here, so that the consumer is sure to stand there when placed is called.
		end, err := f.End(topic, partition)
		if err != nil {
			return nil, err
		}
		start = end
	}
	offset := kgo.NewOffset().At(start)
	if start == fromStart {
		offset = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(f.bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: offset}}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if placed != nil {
		if err := placed(); err != nil {
			return nil, err
		}
	}
	var records []Record
	for len(records) < count {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		fetched.EachRecord(func(record *kgo.Record) { records = append(records, fromFranz(record)) })
	}
	return records[:count], nil
}

func (f *franz) End(topic string, partition int32) (int64, error) {
	ctx, done := bounded()
	defer done()
	listed, err := f.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	found, _ := listed.Lookup(topic, partition)
	return found.Offset, found.Err
}

func (f *franz) OffsetAt(topic string, partition int32, at time.Time) (int64, error) {
	// kadm answers the end of the log where there is none, so ask by the protocol's own request.
	ctx, done := bounded()
	defer done()
	listed, err := f.admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
	if err != nil {
		return 0, err
	}
	found, _ := listed.Lookup(topic, partition)
	if found.Timestamp == -1 {
		return -1, found.Err
	}
	return found.Offset, found.Err
}

func (f *franz) Committed(group, topic string, partition int32) (int64, error) {
	// A client of its own: kadm does not ask again when the old connection has ended with the broker's restart.
	client, err := kgo.NewClient(kgo.SeedBrokers(f.bootstrap))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, done := bounded()
	defer done()
	fetched, err := kadm.NewClient(client).FetchOffsets(ctx, group)
	if err != nil {
		return 0, err
	}
	found, _ := fetched.Lookup(topic, partition)
	return found.At, found.Err
}

type franzMember struct {
	client   *kgo.Client
	stop     context.CancelFunc
	ended    chan error
	lock     sync.Mutex
	assigned map[int32]bool
}

func (f *franz) Join(group, topic string, read func(Record)) (Member, error) {
	member := &franzMember{ended: make(chan error, 1), assigned: map[int32]bool{}}
	gone := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		member.lock.Lock()
		defer member.lock.Unlock()
		for _, partition := range parts[topic] {
			delete(member.assigned, partition)
		}
	}
	// franz-go's default balancer is cooperative-sticky: partitions move in two rounds.
	client, err := kgo.NewClient(kgo.SeedBrokers(f.bootstrap), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(10*time.Second),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			member.lock.Lock()
			defer member.lock.Unlock()
			for _, partition := range parts[topic] {
				member.assigned[partition] = true
			}
		}), kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	member.client, member.stop = client, stop
	go func() {
		for {
			fetched := client.PollFetches(ctx)
			if ctx.Err() != nil {
				member.ended <- nil
				return
			}
			fetched.EachRecord(func(record *kgo.Record) { read(fromFranz(record)) })
			// A commit can fail while the group rebalances; a later one carries the offsets.
			_ = client.CommitUncommittedOffsets(ctx)
		}
	}()
	return member, nil
}

func (m *franzMember) Assigned() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	var assigned []int32
	for partition := range m.assigned {
		assigned = append(assigned, partition)
	}
	return assigned
}

func (m *franzMember) Leave() error {
	m.stop()
	err := <-m.ended
	ctx, done := bounded()
	defer done()
	err = errors.Join(err, m.client.CommitUncommittedOffsets(ctx))
	m.client.Close()
	return err
}
