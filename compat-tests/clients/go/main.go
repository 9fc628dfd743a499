// Runs the common cases with one Go client: `program ADAPTER --bootstrap ADDRESS --prefix PREFIX CASE...`.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

var stdin = bufio.NewScanner(os.Stdin)

func say(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

// answer of the harness.
type answer struct {
	Ok      bool
	Error   string
	Address string // of the way on which acknowledgements get lost
	Lost    int    // how many were

	Topic     string // that was compacted
	Survivors string // what must be left of it: OFFSET KEY VALUE, - for a tombstone, with ; between them
}

// ask has the harness do something to the broker, and returns when it is done.
func ask(what string) error {
	_, err := inquire(what)
	return err
}

func inquire(what string) (told answer, err error) {
	say(map[string]any{"ask": what})
	if !stdin.Scan() {
		return told, fmt.Errorf("the harness is gone")
	}
	if err := json.Unmarshal(stdin.Bytes(), &told); err != nil {
		return told, err
	}
	if !told.Ok {
		return told, fmt.Errorf("the harness could not %s the broker: %s", what, told.Error)
	}
	return told, nil
}

func main() {
	var bootstrap, prefix string
	var names []string
	arguments := os.Args[2:]
	for at := 0; at < len(arguments); at++ {
		switch arguments[at] {
		case "--bootstrap":
			at++
			bootstrap = arguments[at]
		case "--prefix":
			at++
			prefix = arguments[at]
		default:
			names = append(names, arguments[at])
		}
	}
	makers := map[string]func(string) (Client, error){
		"franz-go": newFranz, "sarama": newSarama, "kafka-go": newKafkaGo,
	}
	client, err := makers[os.Args[1]](bootstrap)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range names {
		say(map[string]any{"begin": name})
		begun := time.Now()
		status, detail := "pass", ""
		if err := runCase(name, client, prefix+name); err != nil {
			status, detail = "fail", err.Error()
		}
		took := float64(time.Since(begun).Microseconds()) / 1000
		say(map[string]any{"case": name, "status": status, "detail": detail, "ms": took})
	}
}
