package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

func runCase(name string, client Client, topic string) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v", fault)
		}
	}()
	switch {
	case strings.HasPrefix(name, "codec-"):
		return exchange(client, topic, 10, "compressible "+strings.Repeat("text ", 20), How{Codec: name[6:], Acks: "all", Idempotent: isIdempotent(client)})
	case strings.HasPrefix(name, "acks-"):
		return exchange(client, topic, 100, "value", How{Codec: "none", Acks: name[5:]})
	}
	cases := map[string]func(Client, string) error{
		"default-settings":  func(c Client, t string) error { return exchange(c, t, 100, "value", How{Defaults: true}) },
		"idempotent":        idempotent,
		"keys":              keys,
		"headers-duplicate": headersDuplicate,
		"null-and-empty":    nullAndEmpty,
		"record-1mb":        record1mb,
		"read-start":        func(c Client, t string) error { return exchange(c, t, 10, "value", plain) },
		"read-end":          readEnd,
		"read-offset":       readOffset,
		"read-timestamp":    readTimestamp,
		"group-of-three":    groupOfThree,
		"commit-resume":     commitResume,
		"topic-admin":       topicAdmin,
		"auto-create":       autoCreate,
		"compacted":         func(c Client, _ string) error { return compacted(c) },
		"lost-acks":         lostAcks,
	}
	run, known := cases[name]
	if !known {
		return fmt.Errorf("no such case")
	}
	return run(client, topic)
}

// plain is how most cases send: the way is not what they are about.
var plain = How{Codec: "none", Acks: "all"}

func isIdempotent(client Client) bool {
	_, not := client.(*kafkaGo)
	return !not
}

func numbered(count int, text string) []Record {
	records := make([]Record, count)
	for n := range records {
		records[n] = Record{Key: []byte("key"), Value: fmt.Appendf(nil, "%s %d", text, n)}
	}
	return records
}

func sameValues(found, wanted []Record) error {
	if len(found) != len(wanted) {
		return fmt.Errorf("found %d records, wanted %d", len(found), len(wanted))
	}
	for n := range found {
		if !bytes.Equal(found[n].Value, wanted[n].Value) || (found[n].Value == nil) != (wanted[n].Value == nil) {
			return fmt.Errorf("record %d is %.50q, wanted %.50q", n, found[n].Value, wanted[n].Value)
		}
	}
	return nil
}

func dense(offsets []int64, count int) error {
	if len(offsets) != count {
		return fmt.Errorf("%d offsets for %d records", len(offsets), count)
	}
	for n, offset := range offsets {
		if offset != int64(n) {
			return fmt.Errorf("record %d has offset %d", n, offset)
		}
	}
	return nil
}

// exchange sends records to a new topic of one partition and reads them back.
func exchange(client Client, topic string, count int, text string, how How) error {
	if err := client.Create(topic, 1); err != nil {
		return err
	}
	sent := numbered(count, text)
	offsets, err := client.Produce(topic, sent, 0, how)
	if err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if how.Acks != "0" {
		if err := dense(offsets, count); err != nil {
			return err
		}
	}
	read, err := client.Read(topic, 0, fromStart, count, nil)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	for n, record := range read {
		if record.Offset != int64(n) {
			return fmt.Errorf("record %d was read at offset %d", n, record.Offset)
		}
	}
	return sameValues(read, sent)
}

func idempotent(client Client, topic string) error {
	if err := exchange(client, topic, 1000, "value", How{Codec: "none", Acks: "all", Idempotent: true}); err != nil {
		return err
	}
	if end, err := client.End(topic, 0); err != nil || end != 1000 {
		return fmt.Errorf("the log ends at %d (%v)", end, err)
	}
	return nil
}

func keys(client Client, topic string) error {
	if err := client.Create(topic, 3); err != nil {
		return err
	}
	sent := make([]Record, 100)
	for n := range sent {
		sent[n] = Record{Key: fmt.Appendf(nil, "key %d", n%20), Value: fmt.Appendf(nil, "%d", n)}
	}
	if _, err := client.Produce(topic, sent, byKey, plain); err != nil {
		return err
	}
	place, seen := map[string]int32{}, map[string]bool{}
	for partition := range int32(3) {
		end, err := client.End(topic, partition)
		if err != nil || end == 0 {
			if err != nil {
				return err
			}
			continue
		}
		read, err := client.Read(topic, partition, fromStart, int(end), nil)
		if err != nil {
			return err
		}
		for _, record := range read {
			key := string(record.Key)
			if other, known := place[key]; known && other != partition {
				return fmt.Errorf("%s is on partitions %d and %d", key, other, partition)
			}
			place[key] = partition
			seen[key+"="+string(record.Value)] = true
		}
	}
	for _, record := range sent {
		if !seen[string(record.Key)+"="+string(record.Value)] {
			return fmt.Errorf("%s is missing", record.Value)
		}
	}
	return nil
}

func headersDuplicate(client Client, topic string) error {
	if err := client.Create(topic, 1); err != nil {
		return err
	}
	headers := []Header{{"a", []byte("1")}, {"b", []byte("2")}, {"a", []byte("3")}, {"empty", []byte{}}}
	if _, err := client.Produce(topic, []Record{{Key: []byte("k"), Value: []byte("v"), Headers: headers}}, 0, plain); err != nil {
		return err
	}
	read, err := client.Read(topic, 0, fromStart, 1, nil)
	if err != nil {
		return err
	}
	if found, wanted := fmt.Sprint(read[0].Headers), fmt.Sprint(headers); found != wanted {
		return fmt.Errorf("found %s, wanted %s", found, wanted)
	}
	return nil
}

func nullAndEmpty(client Client, topic string) error {
	if err := client.Create(topic, 1); err != nil {
		return err
	}
	sent := []Record{
		{Key: nil, Value: []byte("null key")},
		{Key: []byte{}, Value: []byte("empty key")},
		{Key: []byte("null value"), Value: nil},
		{Key: []byte("empty value"), Value: []byte{}},
	}
	if _, err := client.Produce(topic, sent, 0, plain); err != nil {
		return err
	}
	read, err := client.Read(topic, 0, fromStart, len(sent), nil)
	if err != nil {
		return err
	}
	if _, blind := client.(*kafkaGo); blind {
		// It reads what is empty as null.
		sent[1].Key, sent[3].Value = nil, nil
	}
	for n, record := range read {
		if !bytes.Equal(record.Key, sent[n].Key) || (record.Key == nil) != (sent[n].Key == nil) {
			return fmt.Errorf("key %d is %#v, wanted %#v", n, record.Key, sent[n].Key)
		}
	}
	return sameValues(read, sent)
}

func record1mb(client Client, topic string) error {
	if err := client.Create(topic, 1); err != nil {
		return err
	}
	large := bytes.Repeat([]byte("0123456789"), 100_000)
	if _, err := client.Produce(topic, []Record{{Value: large}}, 0, How{Codec: "none", Acks: "all", Limit: 1_040_000}); err != nil {
		return err
	}
	read, err := client.Read(topic, 0, fromStart, 1, nil)
	if err != nil {
		return err
	}
	if err := sameValues(read, []Record{{Value: large}}); err != nil {
		return err
	}
	twice := append(append([]byte{}, large...), large...)
	_, err = client.Produce(topic, []Record{{Value: twice}}, 0, How{Codec: "none", Acks: "all", Limit: 10_000_000})
	if !errors.Is(err, errTooLarge) {
		return fmt.Errorf("a record of 2,000,000 bytes: %v", err)
	}
	if end, err := client.End(topic, 0); err != nil || end != 1 {
		return fmt.Errorf("the log ends at %d (%v)", end, err)
	}
	return nil
}

// withTen makes a topic of one partition with ten records in one batch.
func withTen(client Client, topic string) ([]Record, error) {
	if err := client.Create(topic, 1); err != nil {
		return nil, err
	}
	sent := numbered(10, "value")
	_, err := client.Produce(topic, sent, 0, plain)
	return sent, err
}

func readEnd(client Client, topic string) error {
	if _, err := withTen(client, topic); err != nil {
		return err
	}
	later := numbered(3, "later")
	read, err := client.Read(topic, 0, fromEnd, 3, func() error {
		_, err := client.Produce(topic, later, 0, plain)
		return err
	})
	if err != nil {
		return err
	}
	return sameValues(read, later)
}

// compacted reads a topic that the harness wrote and the broker compacted.
func compacted(client Client) error {
	made, err := inquire("compacted")
	if err != nil {
		return err
	}
	survivors := strings.Split(made.Survivors, ";")
	read, err := client.Read(made.Topic, 0, fromStart, len(survivors), nil)
	if err != nil {
		return err
	}
	last := int64(0)
	for n, record := range read {
		value := string(record.Value)
		if record.Value == nil {
			value = "-"
		}
		found := fmt.Sprintf("%d %s %s", record.Offset, record.Key, value)
		if found != survivors[n] {
			return fmt.Errorf("record %d is %q, wanted %q", n, found, survivors[n])
		}
		last = record.Offset
	}
	if end, err := client.End(made.Topic, 0); err != nil || end != last+1 {
		return fmt.Errorf("the log ends at %d (%v), the last record is at %d", end, err, last)
	}
	return nil
}

func readOffset(client Client, topic string) error {
	sent, err := withTen(client, topic)
	if err != nil {
		return err
	}
	read, err := client.Read(topic, 0, 5, 5, nil)
	if err != nil {
		return err
	}
	return sameValues(read, sent[5:])
}

func readTimestamp(client Client, topic string) error {
	if err := client.Create(topic, 1); err != nil {
		return err
	}
	first := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	sent := numbered(10, "value")
	for n := range sent {
		sent[n].Timestamp = first.Add(time.Duration(n) * time.Second)
	}
	if _, err := client.Produce(topic, sent, 0, plain); err != nil {
		return err
	}
	found, err := client.OffsetAt(topic, 0, first.Add(4500*time.Millisecond))
	if err != nil || found != 5 {
		return fmt.Errorf("found offset %d (%v), wanted 5", found, err)
	}
	read, err := client.Read(topic, 0, found, 5, nil)
	if err != nil {
		return err
	}
	if err := sameValues(read, sent[5:]); err != nil {
		return err
	}
	if found, err := client.OffsetAt(topic, 0, first.Add(time.Hour)); err != nil || found != -1 {
		return fmt.Errorf("far in the future: offset %d (%v)", found, err)
	}
	return nil
}

func waitUntil(what string, seconds int, condition func() (bool, error)) error {
	deadline := time.Now().Add(time.Duration(seconds) * time.Second)
	for {
		holds, err := condition()
		if err != nil || holds {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %d s for %s", seconds, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// seen notes what members read, from any goroutine.
type seen struct {
	lock   sync.Mutex
	values []string
}

func (s *seen) note(record Record) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.values = append(s.values, string(record.Value))
}

func (s *seen) missing(sent []string) int {
	s.lock.Lock()
	defer s.lock.Unlock()
	have := map[string]bool{}
	for _, value := range s.values {
		have[value] = true
	}
	missing := 0
	for _, value := range sent {
		if !have[value] {
			missing++
		}
	}
	return missing
}

func groupOfThree(client Client, topic string) error {
	if err := client.Create(topic, 6); err != nil {
		return err
	}
	group := topic + "-group"
	var read seen
	var sent []string
	send := func(text string) error {
		for partition := range int32(6) {
			records := numbered(10, fmt.Sprintf("%s %d", text, partition))
			if _, err := client.Produce(topic, records, partition, plain); err != nil {
				return err
			}
			for _, record := range records {
				sent = append(sent, string(record.Value))
			}
		}
		return nil
	}
	shared := func(what string, members ...Member) error {
		return waitUntil(what, 40, func() (bool, error) {
			owners := map[int32]int{}
			for _, member := range members {
				assigned := member.Assigned()
				if len(assigned) == 0 {
					return false, nil
				}
				for _, partition := range assigned {
					owners[partition]++
				}
			}
			for _, count := range owners {
				if count != 1 {
					return false, nil
				}
			}
			return len(owners) == 6, nil
		})
	}
	committed := map[int32]int64{}
	forward := func() error {
		for partition := range int32(6) {
			at, err := client.Committed(group, topic, partition)
			if err != nil {
				return err
			}
			if at < committed[partition] {
				return fmt.Errorf("the committed offset of %d went back from %d to %d", partition, committed[partition], at)
			}
			committed[partition] = at
		}
		return nil
	}
	allRead := func(what string) error {
		err := waitUntil(what, 40, func() (bool, error) { return read.missing(sent) == 0, nil })
		if err != nil {
			return fmt.Errorf("%w: %d missing", err, read.missing(sent))
		}
		return forward()
	}
	join := func() (Member, error) { return client.Join(group, topic, read.note) }

	if err := send("before"); err != nil {
		return err
	}
	first, err := join()
	if err != nil {
		return err
	}
	second, err := join()
	if err != nil {
		return err
	}
	if err := shared("two members to share the partitions", first, second); err != nil {
		return err
	}
	third, err := join()
	if err != nil {
		return err
	}
	if err := shared("the third member to get its part", first, second, third); err != nil {
		return err
	}
	if err := ask("restart"); err != nil {
		return err
	}
	if err := send("restarted"); err != nil {
		return err
	}
	if err := allRead("all records after the restart"); err != nil {
		return err
	}
	if err := shared("the members to be together again", first, second, third); err != nil {
		return err
	}
	if err := second.Leave(); err != nil {
		return err
	}
	if err := shared("the others to take over", first, third); err != nil {
		return err
	}
	if err := send("left"); err != nil {
		return err
	}
	if err := allRead("all records after the leave"); err != nil {
		return err
	}
	for _, member := range []Member{first, third} {
		if err := member.Leave(); err != nil {
			return err
		}
	}
	for partition := range int32(6) {
		at, err := client.Committed(group, topic, partition)
		if err != nil || at != 30 {
			return fmt.Errorf("partition %d is committed at %d (%v), wanted 30", partition, at, err)
		}
	}
	return nil
}

func commitResume(client Client, topic string) error {
	if err := client.Create(topic, 1); err != nil {
		return err
	}
	group := topic + "-group"
	sent := numbered(10, "value")
	for half := range 2 {
		if _, err := client.Produce(topic, sent[half*5:half*5+5], 0, plain); err != nil {
			return err
		}
		var read seen
		member, err := client.Join(group, topic, read.note)
		if err != nil {
			return err
		}
		err = waitUntil("five records", 15, func() (bool, error) {
			read.lock.Lock()
			defer read.lock.Unlock()
			return len(read.values) >= 5, nil
		})
		if err != nil {
			return err
		}
		if err := member.Leave(); err != nil {
			return err
		}
		for n, value := range read.values {
			if wanted := string(sent[half*5+n].Value); value != wanted {
				return fmt.Errorf("member %d read %q, wanted %q", half, value, wanted)
			}
		}
		at, err := client.Committed(group, topic, 0)
		if err != nil || at != int64(half*5+5) {
			return fmt.Errorf("committed at %d (%v)", at, err)
		}
	}
	return nil
}

func topicAdmin(client Client, topic string) error {
	if err := client.Create(topic, 3); err != nil {
		return err
	}
	topics, err := client.Topics()
	if err != nil || topics[topic] != 3 {
		return fmt.Errorf("the topic has %d partitions (%v)", topics[topic], err)
	}
	if err := client.Create(topic, 3); !errors.Is(err, errTopicExists) {
		return fmt.Errorf("created twice: %v", err)
	}
	if err := client.Delete(topic); err != nil {
		return err
	}
	return waitUntil("the topic to be gone", 10, func() (bool, error) {
		topics, err := client.Topics()
		_, there := topics[topic]
		return !there, err
	})
}

func autoCreate(client Client, topic string) error {
	begun := time.Now()
	if _, err := client.Produce(topic, numbered(1, "first"), 0, plain); err != nil {
		return err
	}
	if _, err := client.Read(topic, 0, fromStart, 1, nil); err != nil {
		return err
	}
	if took := time.Since(begun); took > 5*time.Second {
		return fmt.Errorf("took %s", took)
	}
	return nil
}
