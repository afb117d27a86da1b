package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
)

// logLines is the number of lines of the program for counting log records.
const logLines = 1000

// talker writes them as a program without buffering does, in four writes each, and
// ends.
var talker = []string{
	"/bin/sh", "-c",
	fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); printf 'line '; printf $i; printf ' of many'; echo; done", logLines),
}

// logRecords counts the records that a server makes of the lines: one record for each line is best
// for shippers, which have to join partial records.
func (b *bench) logRecords(ctx context.Context) error {
	p, err := b.upWith(ctx, talker)
	if err != nil {
		return err
	}
	if err := b.ended(ctx, p); err != nil {
		return err
	}
	log, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	records, err := countRecords(log)
	if err != nil {
		return fmt.Errorf("%s: %w", p.log, err)
	}
	b.value(logRecords, fmt.Sprintf("log records of %d lines", logLines), float64(records), "records of a program that does not buffer")
	return b.down(ctx, p)
}

// ended waits until the server says that the container has ended.
func (b *bench) ended(ctx context.Context, p *pod) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := b.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
		if err != nil {
			return fmt.Errorf("ContainerStatus: %w", err)
		}
		if r.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the program has not ended: %w", ctx.Err())
		}
	}
}

// countRecords counts the records of a log in the CRI's format, which must hold the
// talker's lines, all of them and in order.
func countRecords(log []byte) (n int, err error) {
	var text strings.Builder
	for record := range bytes.Lines(log) {
		// The time, the stream, F or P, and the content.
		f := strings.SplitN(strings.TrimSuffix(string(record), "\n"), " ", 4)
		if len(f) != 4 {
			return n, fmt.Errorf("%q is no record", record)
		}
		n++
		text.WriteString(f[3])
		if f[2] == "F" {
			text.WriteByte('\n')
		}
	}
	var want strings.Builder
	for i := range logLines {
		fmt.Fprintf(&want, "line %d of many\n", i+1)
	}
	if text.String() != want.String() {
		return n, fmt.Errorf("the records are not the lines that were written: %d bytes, want %d", text.Len(), want.Len())
	}
	return n, nil
}
