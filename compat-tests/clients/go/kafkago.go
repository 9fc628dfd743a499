package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

type kafkaGo struct {
	bootstrap string
	client    *kafka.Client
}

func newKafkaGo(bootstrap string) (Client, error) {
	return &kafkaGo{bootstrap, &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: 15 * time.Second}}, nil
}

func (k *kafkaGo) Create(topic string, partitions int32) error {
	ctx, done := bounded()
	defer done()
	answer, err := k.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: int(partitions), ReplicationFactor: 1}},
	})
	if err != nil {
		return err
	}
	if errors.Is(answer.Errors[topic], kafka.TopicAlreadyExists) {
		return errTopicExists
	}
	return answer.Errors[topic]
}

func (k *kafkaGo) Delete(topic string) error {
	ctx, done := bounded()
	defer done()
	answer, err := k.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return answer.Errors[topic]
}

func (k *kafkaGo) Topics() (map[string]int, error) {
	ctx, done := bounded()
	defer done()
	answer, err := k.client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, topic := range answer.Topics {
		counts[topic.Name] = len(topic.Partitions)
	}
	return counts, nil
}

func (k *kafkaGo) Produce(topic string, records []Record, partition int32, how How) ([]int64, error) {
	writer := &kafka.Writer{Addr: kafka.TCP(k.bootstrap), Topic: topic, AllowAutoTopicCreation: true, BatchTimeout: 50 * time.Millisecond}
	defer writer.Close()
	writer.Balancer = kafka.BalancerFunc(func(kafka.Message, ...int) int { return int(partition) })
	if partition == byKey {
		writer.Balancer = &kafka.Hash{}
	}
	var lock sync.Mutex
	var offsets []int64
	writer.Completion = func(messages []kafka.Message, err error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			offsets = append(offsets, message.Offset)
		}
	}
	if !how.Defaults {
		codecs := map[string]kafka.Compression{
			"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
		}
		acks := map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll}
		writer.Compression = codecs[how.Codec]
		writer.RequiredAcks = acks[how.Acks]
		if how.Limit > 0 {
			writer.BatchBytes = int64(how.Limit)
		}
	}
	if how.Defaults {
		// kafka-go's own default is acks=0.
		writer.RequiredAcks = kafka.RequireAll
	}
	messages := make([]kafka.Message, len(records))
	for n, record := range records {
		messages[n] = kafka.Message{Key: record.Key, Value: record.Value, Time: record.Timestamp}
		for _, header := range record.Headers {
			messages[n].Headers = append(messages[n].Headers, kafka.Header(header))
		}
	}
	ctx, done := bounded()
	defer done()
	err := writer.WriteMessages(ctx, messages...)
	for errors.Is(err, kafka.UnknownTopicOrPartition) && ctx.Err() == nil {
		// The first answer about a topic that is being created says that it is not there; kafka-go leaves trying again to its user.
		time.Sleep(50 * time.Millisecond)
		err = writer.WriteMessages(ctx, messages...)
	}
	if err != nil {
		var failures kafka.WriteErrors
		if errors.Is(err, kafka.MessageSizeTooLarge) || errors.As(err, &failures) && errors.Is(failures[0], kafka.MessageSizeTooLarge) {
			return nil, errTooLarge
		}
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	lock.Lock()
	defer lock.Unlock()
	return offsets, nil
}

func fromKafkaGo(message kafka.Message) Record {
	out := Record{Key: message.Key, Value: message.Value, Timestamp: message.Time, Partition: int32(message.Partition), Offset: message.Offset}
	for _, header := range message.Headers {
		out.Headers = append(out.Headers, Header(header))
	}
	return out
}

func (k *kafkaGo) Read(topic string, partition int32, start int64, count int, placed func() error) ([]Record, error) {
	ctx, done := bounded()
	defer done()
	if start == fromEnd {
		end, err := k.End(topic, partition)
		if err != nil {
			return nil, err
		}
		start = end
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{k.bootstrap}, Topic: topic, Partition: int(partition), MaxBytes: 10_000_000, MaxWait: 500 * time.Millisecond,
	})
	defer reader.Close()
	if start == fromStart {
		start = kafka.FirstOffset
	}
	if err := reader.SetOffset(start); err != nil {
		return nil, err
	}
	if placed != nil {
		if err := placed(); err != nil {
			return nil, err
		}
	}
	var records []Record
	for len(records) < count {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return nil, err
		}
		records = append(records, fromKafkaGo(message))
	}
	return records, nil
}

func (k *kafkaGo) offsets(topic string, ask kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
	ctx, done := bounded()
	defer done()
	answer, err := k.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {ask}}})
	if err != nil {
		return kafka.PartitionOffsets{}, err
	}
	return answer.Topics[topic][0], answer.Topics[topic][0].Error
}

func (k *kafkaGo) End(topic string, partition int32) (int64, error) {
	found, err := k.offsets(topic, kafka.LastOffsetOf(int(partition)))
	return found.LastOffset, err
}

func (k *kafkaGo) OffsetAt(topic string, partition int32, at time.Time) (int64, error) {
	found, err := k.offsets(topic, kafka.TimeOffsetOf(int(partition), at))
	for offset := range found.Offsets {
		return offset, err
	}
	return -1, err
}

func (k *kafkaGo) Committed(group, topic string, partition int32) (int64, error) {
	ctx, done := bounded()
	defer done()
	// A transport of its own: the shared one first fails on the connection that the broker's restart has ended.
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(k.bootstrap), Transport: transport}
	answer, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: {int(partition)}}})
	if err != nil {
		return 0, err
	}
	found := answer.Topics[topic][0]
	return found.CommittedOffset, errors.Join(answer.Error, found.Error)
}

// kafkaGoMember uses the group API below kafka-go's Reader, which tells what is assigned.
type kafkaGoMember struct {
	group    *kafka.ConsumerGroup
	stop     context.CancelFunc
	ended    chan struct{}
	lock     sync.Mutex
	assigned map[int32]bool
}

func (k *kafkaGo) Join(group, topic string, read func(Record)) (Member, error) {
	joined, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: group, Brokers: []string{k.bootstrap}, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		SessionTimeout: 10 * time.Second, HeartbeatInterval: time.Second, JoinGroupBackoff: 200 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	member := &kafkaGoMember{group: joined, stop: stop, ended: make(chan struct{}), assigned: map[int32]bool{}}
	go func() {
		defer close(member.ended)
		for ctx.Err() == nil {
			generation, err := joined.Next(ctx)
			if err != nil {
				continue
			}
			member.lock.Lock()
			clear(member.assigned)
			for _, part := range generation.Assignments[topic] {
				member.assigned[int32(part.ID)] = true
			}
			member.lock.Unlock()
			for _, part := range generation.Assignments[topic] {
				generation.Start(func(life context.Context) { k.follow(life, generation, topic, part, read) })
			}
		}
	}()
	return member, nil
}

// follow reads one partition for one generation of the group.
func (k *kafkaGo) follow(life context.Context, generation *kafka.Generation, topic string, part kafka.PartitionAssignment, read func(Record)) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{k.bootstrap}, Topic: topic, Partition: part.ID, MaxBytes: 10_000_000, MaxWait: 200 * time.Millisecond,
	})
	defer reader.Close()
	if reader.SetOffset(part.Offset) != nil {
		return
	}
	for {
		message, err := reader.ReadMessage(life)
		if err != nil {
			if life.Err() != nil {
				return
			}
			continue
		}
		read(fromKafkaGo(message))
		// A commit can fail while the group rebalances; the next one carries the offset.
		_ = generation.CommitOffsets(map[string]map[int]int64{topic: {part.ID: message.Offset + 1}})
	}
}

func (m *kafkaGoMember) Assigned() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	var assigned []int32
	for partition := range m.assigned {
		assigned = append(assigned, partition)
	}
	return assigned
}

func (m *kafkaGoMember) Leave() error {
	m.stop()
	err := m.group.Close()
	<-m.ended
	return err
}
