// Command compare reads what OCI's validation suite said (TAP, a file per
// program) of runc and of longshore-oci, prints a row for each program whose
// cases did not all pass for both, and fails when one that runc passes does not
// pass for us and is not known.
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// outcome is one program's.
type outcome struct {
	passed int
	failed []string // their descriptions, with repetitions
	status string
}

var testLine = regexp.MustCompile(`^(not )?ok \d+(?: - )?(.*)$`)

func read(path string) (outcome, error) {
	f, err := os.Open(path)
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = f.Close() }()
	var o outcome
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if s, ok := strings.CutPrefix(sc.Text(), "status "); ok {
			o.status = s
			continue
		}
		m := testLine.FindStringSubmatch(sc.Text())
		switch {
		case m == nil:
		case m[1] == "":
			o.passed++
		default:
			o.failed = append(o.failed, strings.TrimSpace(m[2]))
		}
	}
	return o, sc.Err()
}

// known reads "program: reason" lines.
func known(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if name, reason, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name[0] != '#' {
			all[name] = reason
		}
	}
	return all, nil
}

// worse says whether ours fails what theirs does not: more cases failed, or
// fewer passed, or a program that ends worse.
func worse(ours, theirs outcome) bool {
	left := map[string]int{}
	for _, f := range theirs.failed {
		left[f]++
	}
	for _, f := range ours.failed {
		if left[f]--; left[f] < 0 {
			return true
		}
	}
	return ours.passed < theirs.passed || ours.status != "0" && theirs.status == "0"
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: compare RUNC-DIRECTORY OUR-DIRECTORY KNOWN-FILE")
	}
	reasons, err := known(args[2])
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(args[0], "*.tap"))
	if err != nil {
		return err
	}
	var bad []string
	var ours, theirs int
	fmt.Printf("%-36s %14s %14s\n", "program (passed/failed status)", "runc", "longshore-oci")
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".tap")
		a, err := read(f)
		if err != nil {
			return err
		}
		b, err := read(filepath.Join(args[1], name+".tap"))
		if err != nil {
			return err
		}
		theirs, ours = theirs+a.passed, ours+b.passed
		note := ""
		if worse(b, a) {
			if note = reasons[name]; note == "" {
				note = "WORSE"
				bad = append(bad, name)
			}
		}
		if len(a.failed)+len(b.failed) > 0 || a.status != "0" || b.status != "0" || note != "" {
			fmt.Printf("%-36s %7d/%-3d %-3s %7d/%-3d %-3s %s\n", name, a.passed, len(a.failed), a.status, b.passed, len(b.failed), b.status, note)
		}
	}
	fmt.Printf("%d programs; cases passed: runc %d, longshore-oci %d\n", len(files), theirs, ours)
	if len(bad) > 0 {
		return fmt.Errorf("worse than runc: %s", strings.Join(bad, ", "))
	}
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}
