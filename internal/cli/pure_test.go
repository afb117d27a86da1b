package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/config"
)

func TestParsePort(t *testing.T) {
	for in, want := range map[string]*longshorev1.Port{
		"80:8080":             {Protocol: "tcp", Host: 80, Container: 8080},
		"53:53/udp":           {Protocol: "udp", Host: 53, Container: 53},
		"127.0.0.1:1:2/sctp":  {Protocol: "sctp", HostIp: "127.0.0.1", Host: 1, Container: 2},
		"[::1]:1:2":           {Protocol: "tcp", HostIp: "::1", Host: 1, Container: 2},
		"[fd00::1:2]:8080:80": {Protocol: "tcp", HostIp: "fd00::1:2", Host: 8080, Container: 80},
		"80":                  {Protocol: "tcp", Container: 80},
		":80/udp":             {Protocol: "udp", Container: 80},
		"0:80":                {Protocol: "tcp", Container: 80},
		"127.0.0.1::80":       {Protocol: "tcp", HostIp: "127.0.0.1", Container: 80},
		"[::1]::80":           {Protocol: "tcp", HostIp: "::1", Container: 80},
		"80:":                 nil, "a:b": nil, "70000:1": nil, "": nil, "1:2:": nil, ":0": nil, "0": nil, ":": nil, "/tcp": nil, "1-3:1-2": nil, "3-1": nil, "1-": nil, "127.0.0.1:80": nil,
	} {
		got, err := typed.Ports(in)
		if want == nil {
			if err == nil {
				t.Errorf("%q was taken: %v", in, got)
			}
			continue
		}
		if err != nil || len(got) != 1 || got[0].String() != want.String() {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	got, err := typed.Ports("127.0.0.1:8000-8002:80-82/udp")
	if err != nil || len(got) != 3 || got[2].GetHost() != 8002 || got[2].GetContainer() != 82 || got[2].GetHostIp() != "127.0.0.1" || got[2].GetProtocol() != "udp" {
		t.Errorf("a range: %v, %v", got, err)
	}
}

// TestParseMount parses values of -v.
func TestParseMount(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]*longshorev1.Mount{
		"/a:/b":           {Source: "/a", Target: "/b"},
		"/a:/b:ro,z":      {Source: "/a", Target: "/b", ReadOnly: true, Relabel: "z"},
		"/a:/b:rshared,Z": {Source: "/a", Target: "/b", Propagation: "rshared", Relabel: "Z"},
		".:/b":            {Source: here, Target: "/b"},
		"./x:/b:rw":       {Source: filepath.Join(here, "x"), Target: "/b"},
		"vol:/b:nocopy":   {Source: "vol", Target: "/b", NoCopy: true},
		"vol/in/it:/b":    {Source: "vol", SubPath: "in/it", Target: "/b"},
		"/b":              {Target: "/b", Anonymous: true},
		"/b:ro":           {Target: "/b", Anonymous: true, ReadOnly: true},
		"":                nil, ":": nil, "a:b": nil, ":/b": nil, "/a:": nil, "/a:/b:bad": nil, "/a:/b:ro:rw": nil, "vol": nil,
	} {
		got, err := typed.Mount(in)
		if want == nil {
			if err == nil {
				t.Errorf("%q was taken: %v", in, got)
			}
			continue
		}
		if err != nil || got.String() != want.String() {
			t.Errorf("%q: %v, %v, want %v", in, got, err, want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]uint64{"512": 512, "64k": 64 << 10, "64M": 64 << 20, "1.5g": 3 << 29, "2GiB": 2 << 30, "1tb": 1 << 40, "10b": 10} {
		if got, err := typed.Bytes(in); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "m", "-1", "1x", "1e30", "nan", "inf"} {
		if got, err := typed.Bytes(in); err == nil {
			t.Errorf("%q was taken: %d", in, got)
		}
	}
}

func TestSizesHaveThreeDigits(t *testing.T) {
	for n, want := range map[uint64]string{0: "0B", 999: "999B", 1000: "1kB", 1536: "1.54kB", 999_999: "1MB", 64 << 20: "67.1MB", 5e9: "5GB", 1 << 63: "9.22EB"} {
		if got := base.Size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestTablesEscapeControlCharacters(t *testing.T) {
	var out bytes.Buffer
	if err := base.Table(&out, []string{"A", "B"}, [][]string{{"x\x1b[2Jy\nz", "1"}, {"é", ""}}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "\n"); got != 3 || strings.ContainsRune(out.String(), 0x1b) {
		t.Errorf("got %q", out.String())
	}
}

func TestErrorsAreOneLineWithAHint(t *testing.T) {
	a := &app{base.NewApp(Options{Getenv: func(name string) string { return map[string]string{"LONGSHORE_SOCKET": "/nonexistent/x.sock"}[name] }})}
	for want, err := range map[string]error{
		`find "x": not found`: status.Error(codes.NotFound, `find "x": not found`),
		"bad port":            status.Error(codes.InvalidArgument, "bad port: invalid argument"),
		"two lines":           errors.New("two\nlines"),
		"interrupted":         &base.ExitError{Status: 125, Err: status.Error(codes.Canceled, "context canceled")},
	} {
		if got := a.Explain(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := a.Explain(status.Error(codes.Unavailable, "connection refused")); !strings.Contains(got, "the agent is not running") {
		t.Errorf("got %q", got)
	}
}

func TestJSONHasEveryFieldAndRealNumbers(t *testing.T) {
	var out bytes.Buffer
	m := &longshorev1.Image{Id: "i<>", SizeBytes: 1 << 60, Pulled: timestamppb.New(timestamppb.Now().AsTime().Truncate(0)), Names: []string{"a"}}
	if err := present.WriteList(&out, []*longshorev1.Image{m}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"id": "i<>"`, `"size_bytes": 1152921504606846976`, `"created": null`, `"digests": []`, `"pinned": false`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %s", out.String(), want)
		}
	}
	out.Reset()
	if err := present.WriteList[*longshorev1.Image](&out, nil); err != nil || out.String() != "[]\n" {
		t.Errorf("nothing is %q, %v", out.String(), err)
	}
}

func TestLogLinesStayWhole(t *testing.T) {
	var out, errs bytes.Buffer
	p := logPrinter{a: &app{base.NewApp(Options{Stdout: &out, Stderr: &errs})}, stamps: true}
	at := timestamppb.New(timestamppb.Now().AsTime())
	for _, m := range []*longshorev1.LogsResponse{
		{At: at, Stream: "stdout", Data: []byte("par"), Partial: true},
		{At: at, Stream: "stderr", Data: []byte("other")},
		{At: at, Stream: "stdout", Data: []byte("tial")},
	} {
		if err := p.print(m); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasSuffix(out.String(), " partial\n") || strings.Count(out.String(), "\n") != 1 || !strings.HasSuffix(errs.String(), " other\n") {
		t.Errorf("out %q, err %q", out.String(), errs.String())
	}
}

func TestTimesAreParsed(t *testing.T) {
	for _, in := range []string{"10m", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05", "2026-01-02", "1700000000", "1700000000.5"} {
		if got, err := parseTime("--since", in); err != nil || got == nil {
			t.Errorf("%q: %v", in, err)
		}
	}
	if got, err := parseTime("--since", "soon"); err == nil {
		t.Errorf("soon is %v", got)
	}
}

func TestEveryCommandIsDocumented(t *testing.T) {
	root := newRoot(&app{base.NewApp(Options{Agent: func(context.Context, config.Config, *slog.Logger, *slog.LevelVar) error { return nil }})})
	var want strings.Builder
	writeReference(&want, root)
	const path = "../../docs/guide/cli.md"
	guide, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated: longshore's own help -->\n", "<!-- end -->\n"
	head, rest, ok := strings.Cut(string(guide), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines %q and %q", path, begin, end)
	}
	now := head + begin + want.String() + end + tail
	if now == string(guide) {
		return
	}
	if os.Getenv("LONGSHORE_UPDATE") == "" {
		t.Fatalf("%s is not what the commands say of themselves: run this test with LONGSHORE_UPDATE=1", path)
	}
	if err := os.WriteFile(path, []byte(now), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestEveryCommandHasAnExample walks all commands: their help shows an example that begins with the
// command itself and uses existing flags.
func TestEveryCommandHasAnExample(t *testing.T) {
	root := newRoot(&app{base.NewApp(Options{Agent: func(context.Context, config.Config, *slog.Logger, *slog.LevelVar) error { return nil }})})
	var walk func(*cobra.Command)
	seen := 0
	walk = func(cmd *cobra.Command) {
		seen++
		var help bytes.Buffer
		cmd.SetOut(&help)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		names := append([]string{cmd.Name()}, cmd.Aliases...)
		found := false
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			if !strings.Contains(help.String(), line) {
				t.Errorf("%s: the help does not show %q", cmd.CommandPath(), line)
			}
			for _, n := range names {
				path := strings.TrimSpace(strings.TrimSuffix(cmd.CommandPath(), cmd.Name()) + n)
				found = found || strings.Contains(line, path)
			}
			found = found || !cmd.HasParent()
			if !cmd.HasSubCommands() && cmd.Name() != "oci" && cmd.Name() != "guest" {
				exampleFlags(t, cmd, line)
			}
		}
		if !found {
			t.Errorf("%s: the help has no example of it", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	if seen < 80 {
		t.Errorf("only %d commands were seen", seen)
	}
}

// TestManualPages writes the manual pages of all commands, and runs man on them if it is installed.
func TestManualPages(t *testing.T) {
	dir := t.TempDir()
	root := newRoot(&app{base.NewApp(Options{Version: "1.2.3"})})
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "longshore-container-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`.TH "LONGSHORE-CONTAINER-RUN" 1 "" "longshore 1.2.3"`, `\fB\-e, \-\-env\fR`, `.SH EXAMPLES`, `longshore container run \-\-rm \-it busybox sh`, ".BR longshore\\-container (1)"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, ".") && !regexp.MustCompile(`^\.(TH|SH|TP|BR?|PP|nf|fi|nh|ad)( |$)`).MatchString(strings.TrimSpace(line)) {
			t.Errorf("a line of text is read as a request: %q", line)
		}
	}
	if pages, err := filepath.Glob(filepath.Join(dir, "longshore*.1")); err != nil || len(pages) < 80 {
		t.Errorf("%d pages, %v", len(pages), err)
	}
	man, err := exec.LookPath("man")
	if err != nil {
		return
	}
	cmd := exec.CommandContext(t.Context(), man, "--warnings", "-E", "UTF-8", "-l", filepath.Join(dir, "longshore-run.1"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "MANPAGER=cat", "MANWIDTH=100", "LC_ALL=C.UTF-8"}
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "warning:") {
		t.Errorf("man: %v\n%s", err, out)
	}
}

// exampleFlags checks the flags of the command in its own part of an example.
func exampleFlags(t *testing.T, cmd *cobra.Command, line string) {
	t.Helper()
	_, rest, ok := strings.Cut(line, cmd.CommandPath()+" ")
	if !ok {
		return
	}
	for word := range strings.FieldsSeq(rest) {
		name, isLong := strings.CutPrefix(word, "--")
		switch {
		case word == "|" || word == ">" || word == "&&" || !strings.HasPrefix(word, "-") && cmd.Name() == "run":
			return
		case isLong && cmd.Flag(name) == nil:
			t.Errorf("%s: its example has --%s, which is no flag of it", cmd.CommandPath(), name)
		case !isLong && len(word) == 2 && word[0] == '-' && cmd.Flags().ShorthandLookup(word[1:]) == nil:
			t.Errorf("%s: its example has %s, which is no flag of it", cmd.CommandPath(), word)
		}
	}
}

// writeReference writes the help of each command.
func writeReference(w *strings.Builder, cmd *cobra.Command) {
	if cmd.HasParent() && cmd.IsAvailableCommand() && cmd.Name() != "help" && cmd.Name() != "completion" {
		fmt.Fprintf(w, "\n### %s\n\n    %s\n\n", cmd.CommandPath(), cmd.UseLine())
		text := cmd.Long
		if text == "" {
			text = cmd.Short
		}
		fmt.Fprintf(w, "%s\n", strings.TrimSuffix(text, ".")+".")
		if rows := flagRows(cmd); rows != "" {
			fmt.Fprintf(w, "\n| flag | meaning |\n|---|---|\n%s", rows)
		}
	}
	for _, sub := range cmd.Commands() {
		if name := cmd.Name(); name == "help" || name == "completion" {
			continue
		}
		if short := shortForm(sub); short != "" {
			fmt.Fprintf(w, "\n### %s\n\n    %s\n\nThe same as `%s`.\n", sub.CommandPath(), sub.UseLine(), short)
			continue
		}
		writeReference(w, sub)
	}
}

// shortForm returns the top-level command that a group's command repeats, "" if there is none.
func shortForm(cmd *cobra.Command) string {
	group := cmd.Parent().Name()
	if group != "container" && group != "image" && group != "system" {
		return ""
	}
	name := cmd.Name()
	switch group + " " + name {
	case "container ls":
		name = "ps"
	case "image ls":
		name = "images"
	case "image rm":
		name = "rmi"
	case "container prune", "image prune", "image inspect", "container inspect", "container export":
		return ""
	}
	short, _, err := cmd.Root().Find([]string{name})
	if err != nil || short.Name() != name {
		return ""
	}
	return short.CommandPath()
}

func flagRows(cmd *cobra.Command) string {
	var rows strings.Builder
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		usage := strings.ReplaceAll(f.Usage, "|", "\\|")
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" && !strings.Contains(usage, "default") {
			usage += " (default " + d + ")"
		}
		fmt.Fprintf(&rows, "| `%s` | %s |\n", name, usage)
	})
	return rows.String()
}

func TestWhyStartShowsThePartsOfAStart(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	part := func(verb string, after time.Duration, took ...time.Duration) *longshorev1.StartPart {
		p := &longshorev1.StartPart{Verb: verb, By: "cri", At: timestamppb.New(at.Add(after))}
		for i, d := range took {
			p.Stages = append(p.Stages, &longshorev1.StartStage{Name: string(rune('a' + i)), Took: durationpb.New(d)})
		}
		return p
	}
	var out strings.Builder
	err := writeStart(&out, &longshorev1.WhyResponse{
		Container: &longshorev1.Container{Key: "we\x1bb", State: "created"},
		Start:     []*longshorev1.StartPart{part("pull", 0, 11*time.Second, time.Second), part("create", 13*time.Second, 750*time.Microsecond, 250*time.Microsecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"we b: created, was not started\n", "pull of its image          12.0 s  at ", ", asked by cri\n", "  a                        11.0 s  ############################\n",
		"  until the next call      1.00 s  ", "container                1.000 ms  at ", "  b                      0.250 ms  ########\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := writeStart(&out, &longshorev1.WhyResponse{Container: &longshorev1.Container{Key: "old"}}); err != nil || !strings.HasPrefix(out.String(), "old: there is no record of its start") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
