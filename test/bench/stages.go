package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// stage is the sum of all runs of one stage of the engine's verbs.
type stage struct {
	name  string
	count float64
	sum   time.Duration
}

// stages reads our agent's own account of where its time went, in the order of
// its answer; another server gives none.
func (b *bench) stages(ctx context.Context) ([]stage, error) {
	if !b.ours() {
		return nil, nil
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(b.server.State, "control-http.sock"))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return parseStages(resp.Body)
}

func parseStages(r io.Reader) ([]stage, error) {
	const metric = "longshore_engine_stage_duration_seconds_"
	index := map[string]int{}
	var all []stage
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), metric)
		if !ok {
			continue
		}
		kind, rest, _ := strings.Cut(rest, "{") // the labels are face and stage
		_, rest, _ = strings.Cut(rest, `stage="`)
		name, number, _ := strings.Cut(rest, `"} `)
		value, err := strconv.ParseFloat(number, 64)
		if kind != "sum" && kind != "count" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", lines.Text(), err)
		}
		i, ok := index[name]
		if !ok {
			i = len(all)
			index[name] = i
			all = append(all, stage{name: name})
		}
		if kind == "count" {
			all[i].count += value
		} else {
			all[i].sum += time.Duration(value * float64(time.Second))
		}
	}
	return all, lines.Err()
}

// since returns the durations of the stages since old was read.
func since(old, now []stage) []stage {
	var all []stage
	for _, s := range now {
		for _, o := range old {
			if o.name == s.name {
				s.count, s.sum = s.count-o.count, s.sum-o.sum
			}
		}
		if s.count > 0 {
			all = append(all, s)
		}
	}
	return all
}

func (s stage) mean() float64 { return ms(s.sum) / s.count }

// printStages prints the average of each stage and, unless other is nil, that of another case.
func printStages(stages, other []stage) {
	for _, s := range stages {
		beside := ""
		for _, o := range other {
			if o.name == s.name {
				beside = fmt.Sprintf(", %8.3f ms with none", o.mean())
			}
		}
		fmt.Printf("    %-26s %8.3f ms%s, %g times\n", s.name, s.mean(), beside, s.count)
	}
}
