package main

import (
	"fmt"
	"os"
	"sync"
)

// lostAcks loses every seventh acknowledgement with its connection, and kills the broker three times: each record is there once and in order.
func lostAcks(client Client, topic string) error {
	count := 6_000
	if os.Getenv("FELIX_FULL") != "" {
		count = 20_000
	}
	if err := client.Create(topic, 1); err != nil {
		return err
	}
	way, err := inquire("lossy")
	if err != nil {
		return err
	}
	records := numbered(count, "value")
	var lock sync.Mutex
	acknowledged, disordered, last := 0, 0, int64(-1)
	soFar := func() int {
		lock.Lock()
		defer lock.Unlock()
		return acknowledged
	}
	acked := func(offset int64) {
		lock.Lock()
		defer lock.Unlock()
		acknowledged++
		if offset <= last {
			disordered++
		}
		last = offset
	}
	sent := func(n int) error {
		if n%(count/3) != count/6 {
			return nil
		}
		before := soFar()
		if err := waitUntil("records to be acknowledged", 30, func() (bool, error) { return soFar() > before, nil }); err != nil {
			return err
		}
		return ask("kill")
	}
	if err := client.(Streamer).Stream(way.Address, topic, records, sent, acked); err != nil {
		return err
	}
	if acknowledged != count || disordered != 0 {
		return fmt.Errorf("%d of %d acknowledged, %d out of order", acknowledged, count, disordered)
	}
	if way, err = inquire("lossy"); err != nil || way.Lost < 20 {
		return fmt.Errorf("only %d acknowledgements were lost (%v)", way.Lost, err)
	}
	read, err := client.Read(topic, 0, fromStart, count, nil)
	if err != nil {
		return err
	}
	if err := sameValues(read, records); err != nil {
		return err
	}
	if end, err := client.End(topic, 0); err != nil || end != int64(count) {
		return fmt.Errorf("the log ends at %d (%v)", end, err)
	}
	return nil
}
