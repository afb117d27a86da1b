package arch_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// firstRuled is the last commit before the rules for messages. Older commits have faults.
const firstRuled = "f2cc92abb4ad2bf837b90b44e6a58ad91358d0af"

// maxSubject is the length of a subject that every list of commits shows whole, in characters.
const maxSubject = 76

// trailer is a line that git or a tool adds to a message; it is no body.
var trailer = regexp.MustCompile(`^[A-Z][A-Za-z-]+: .+$`)

// messageFaults returns the faults of a commit message. Its body says why, so there must be one.
func messageFaults(message string) (faults []string) {
	subject, rest, _ := strings.Cut(strings.TrimRight(message, "\n"), "\n")
	if n := utf8.RuneCountInString(subject); n > maxSubject {
		faults = append(faults, fmt.Sprintf("the subject has %d characters, at most %d are allowed", n, maxSubject))
	}
	if strings.TrimSpace(subject) == "" {
		faults = append(faults, "it has no subject")
	}
	if rest != "" && !strings.HasPrefix(rest, "\n") {
		faults = append(faults, "no empty line follows the subject")
	}
	for line := range strings.Lines(rest) {
		if line = strings.TrimSpace(line); line != "" && !trailer.MatchString(line) {
			return faults
		}
	}
	return append(faults, "it has no body that says why")
}

// TestNewCommitsSayWhy reads the messages of the commits after firstRuled.
func TestNewCommitsSayWhy(t *testing.T) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", "../.."}, args...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := git("rev-parse", "--verify", "HEAD"); err != nil {
		t.Skipf("the sources have no readable git history: %v: %s", err, out)
	}
	if _, err := git("merge-base", "--is-ancestor", firstRuled, "HEAD"); err != nil {
		t.Skipf("the history does not reach %s, as in a shallow clone", firstRuled)
	}
	out, err := git("log", "--no-merges", "-z", "--format=%h %B", firstRuled+"..HEAD")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for commit := range strings.SplitSeq(strings.TrimRight(out, "\x00"), "\x00") {
		hash, message, _ := strings.Cut(commit, " ")
		for _, fault := range messageFaults(message) {
			t.Errorf("commit %s: %s", hash, fault)
		}
	}
}

// TestFaultsOfMessagesAreFound is the control of TestNewCommitsSayWhy.
func TestFaultsOfMessagesAreFound(t *testing.T) {
	long := strings.Repeat("ä", maxSubject)
	for message, want := range map[string]int{
		"engine: keep the record\n\nA crash lost it.\n":               0,
		long + "\n\nWhy.\n":                                           0,
		long + "x\n\nWhy.\n":                                          1,
		"engine: keep the record\n":                                   1,
		"engine: keep the record\n\nSigned-off-by: A <a@example>\n":   1,
		"engine: keep the record\nin the next line\n":                 1,
		"engine: keep the record\n\nWhy.\n\nSigned-off-by: A <a@b>\n": 0,
		"": 2,
	} {
		if got := messageFaults(message); len(got) != want {
			t.Errorf("%q: %q, want %d faults", message, got, want)
		}
	}
}
