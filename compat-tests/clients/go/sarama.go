package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type saramaClient struct {
	bootstrap []string
}

func newSarama(bootstrap string) (Client, error) {
	return &saramaClient{[]string{bootstrap}}, nil
}

func (s *saramaClient) config() *sarama.Config {
	return sarama.NewConfig()
}

func withAdmin[T any](s *saramaClient, ask func(sarama.ClusterAdmin) (T, error)) (T, error) {
	admin, err := sarama.NewClusterAdmin(s.bootstrap, s.config())
	if err != nil {
		var none T
		return none, err
	}
	defer admin.Close()
	return ask(admin)
}

func withClient[T any](s *saramaClient, ask func(sarama.Client) (T, error)) (T, error) {
	client, err := sarama.NewClient(s.bootstrap, s.config())
	if err != nil {
		var none T
		return none, err
	}
	defer client.Close()
	return ask(client)
}

func (s *saramaClient) Create(topic string, partitions int32) error {
	_, err := withAdmin(s, func(admin sarama.ClusterAdmin) (bool, error) {
		return true, admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
	})
	if errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return errTopicExists
	}
	return err
}

func (s *saramaClient) Delete(topic string) error {
	_, err := withAdmin(s, func(admin sarama.ClusterAdmin) (bool, error) { return true, admin.DeleteTopic(topic) })
	return err
}

func (s *saramaClient) Topics() (map[string]int, error) {
	return withAdmin(s, func(admin sarama.ClusterAdmin) (map[string]int, error) {
		listed, err := admin.ListTopics()
		counts := map[string]int{}
		for name, topic := range listed {
			counts[name] = int(topic.NumPartitions)
		}
		return counts, err
	})
}

func (s *saramaClient) Produce(topic string, records []Record, partition int32, how How) ([]int64, error) {
	config := s.config()
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	if partition == byKey {
		config.Producer.Partitioner = sarama.NewHashPartitioner
	}
	if !how.Defaults {
		codecs := map[string]sarama.CompressionCodec{
			"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
			"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
		}
		acks := map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll}
		config.Producer.Compression = codecs[how.Codec]
		config.Producer.RequiredAcks = acks[how.Acks]
		config.Producer.Flush.Frequency = 50 * time.Millisecond
		if how.Idempotent {
			config.Producer.Idempotent = true
			config.Net.MaxOpenRequests = 1
		}
		if how.Limit > 0 {
			config.Producer.MaxMessageBytes = int(how.Limit)
		}
	}
	producer, err := sarama.NewSyncProducer(s.bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	messages := make([]*sarama.ProducerMessage, len(records))
	for n, record := range records {
		message := &sarama.ProducerMessage{Topic: topic, Partition: partition, Timestamp: record.Timestamp}
		// A typed nil would be sent as an empty value.
		if record.Key != nil {
			message.Key = sarama.ByteEncoder(record.Key)
		}
		if record.Value != nil {
			message.Value = sarama.ByteEncoder(record.Value)
		}
		for _, header := range record.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Key), Value: header.Value})
		}
		messages[n] = message
	}
	if err := producer.SendMessages(messages); err != nil {
		var failures sarama.ProducerErrors
		if errors.As(err, &failures) && errors.Is(failures[0].Err, sarama.ErrMessageSizeTooLarge) {
			return nil, errTooLarge
		}
		return nil, err
	}
	var offsets []int64
	for _, message := range messages {
		offsets = append(offsets, message.Offset)
	}
	return offsets, nil
}

func fromSarama(message *sarama.ConsumerMessage) Record {
	out := Record{Key: message.Key, Value: message.Value, Timestamp: message.Timestamp, Partition: message.Partition, Offset: message.Offset}
	for _, header := range message.Headers {
		out.Headers = append(out.Headers, Header{string(header.Key), header.Value})
	}
	return out
}

func (s *saramaClient) Stream(bootstrap, topic string, records []Record, sent func(int) error, acked func(int64)) error {
	config := s.config()
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	// All that sarama allows an idempotent producer.
	config.Net.MaxOpenRequests = 1
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.MaxMessages = 20
	config.Producer.Retry.Max = 1_000
	config.Producer.Retry.Backoff = 10 * time.Millisecond
	config.Metadata.Retry.Max = 1_000
	config.Metadata.Retry.Backoff = 10 * time.Millisecond
	producer, err := sarama.NewAsyncProducer([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer producer.AsyncClose()
	settled := make(chan error, 1)
	go func() {
		var failure error
		for range records {
			select {
			case taken := <-producer.Successes():
				acked(taken.Offset)
			case failed := <-producer.Errors():
				failure = errors.Join(failure, failed)
			}
		}
		settled <- failure
	}()
	for n, record := range records {
		producer.Input() <- &sarama.ProducerMessage{Topic: topic, Key: sarama.ByteEncoder(record.Key), Value: sarama.ByteEncoder(record.Value)}
		if err := sent(n); err != nil {
			return err
		}
	}
	// A producer that is closed gives up what it would have to send again, so it is closed when all is settled.
	select {
	case failure := <-settled:
		return failure
	case <-time.After(60 * time.Second):
		return errors.New("the producer does not settle its records")
	}
}

func (s *saramaClient) Read(topic string, partition int32, start int64, count int, placed func() error) ([]Record, error) {
	consumer, err := sarama.NewConsumer(s.bootstrap, s.config())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	at := map[int64]int64{fromStart: sarama.OffsetOldest, fromEnd: sarama.OffsetNewest}
	if place, special := at[start]; special {
		start = place
	}
	// ConsumePartition has asked for the offset when it returns.
	reader, err := consumer.ConsumePartition(topic, partition, start)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	if placed != nil {
		if err := placed(); err != nil {
			return nil, err
		}
	}
	var records []Record
	deadline := time.After(15 * time.Second)
	for len(records) < count {
		select {
		case message := <-reader.Messages():
			records = append(records, fromSarama(message))
		case <-deadline:
			return nil, errors.New("not all records came within 15 s")
		}
	}
	return records, nil
}

func (s *saramaClient) End(topic string, partition int32) (int64, error) {
	return withClient(s, func(client sarama.Client) (int64, error) {
		return client.GetOffset(topic, partition, sarama.OffsetNewest)
	})
}

func (s *saramaClient) OffsetAt(topic string, partition int32, at time.Time) (int64, error) {
	return withClient(s, func(client sarama.Client) (int64, error) {
		return client.GetOffset(topic, partition, at.UnixMilli())
	})
}

func (s *saramaClient) Committed(group, topic string, partition int32) (int64, error) {
	return withAdmin(s, func(admin sarama.ClusterAdmin) (int64, error) {
		answer, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {partition}})
		if err != nil {
			return 0, err
		}
		block := answer.GetBlock(topic, partition)
		if block.Err != sarama.ErrNoError {
			return 0, block.Err
		}
		return block.Offset, nil
	})
}

type saramaMember struct {
	topic    string
	read     func(Record)
	group    sarama.ConsumerGroup
	stop     context.CancelFunc
	ended    chan struct{}
	lock     sync.Mutex
	assigned map[int32]bool
}

func (s *saramaClient) Join(group, topic string, read func(Record)) (Member, error) {
	config := s.config()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 10 * time.Second
	joined, err := sarama.NewConsumerGroup(s.bootstrap, group, config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	member := &saramaMember{topic: topic, read: read, group: joined, stop: stop, ended: make(chan struct{}), assigned: map[int32]bool{}}
	go func() {
		defer close(member.ended)
		for ctx.Err() == nil {
			// Consume returns at every rebalance, and with an error while the broker is away.
			if joined.Consume(ctx, []string{topic}, member) != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return member, nil
}

func (m *saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	for _, partition := range session.Claims()[m.topic] {
		m.assigned[partition] = true
	}
	return nil
}

func (m *saramaMember) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	m.lock.Lock()
	defer m.lock.Unlock()
	clear(m.assigned)
	return nil
}

func (m *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return nil
			}
			m.read(fromSarama(message))
			session.MarkMessage(message, "")
			session.Commit()
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *saramaMember) Assigned() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	return slices.Collect(maps.Keys(m.assigned))
}

func (m *saramaMember) Leave() error {
	m.stop()
	<-m.ended
	return m.group.Close()
}
