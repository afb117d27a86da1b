package wire

import (
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/weaken"
)

// Formats returns a line with the release of a keeper's program and the numbers of its formats. An agent reads it before
// it replaces a keeper by that program.
func Formats(release string) string {
	number := func(n int) string { return strconv.Itoa(n) }
	return "longshore-keeper protocol " + number(int(OldestSpoken())) + " " + number(int(Newest())) + " handover " +
		number(weaken.Mark("keeper-handover-oldest", OldestHandover)) + " " + number(weaken.Mark("keeper-handover", Handover)) +
		" release " + release + "\n"
}

// Stated has a line of Formats: the oldest and the newest number of each format that the program can use.
type Stated struct {
	OldestProtocol, Protocol int
	OldestHandover, Handover int
	Release                  string
}

// ParseFormats parses a line of Formats. Programs of later releases may add to its end.
func ParseFormats(line string) (s Stated, ok bool) {
	words := strings.Fields(line)
	if len(words) < 9 || words[0] != "longshore-keeper" || words[1] != "protocol" || words[4] != "handover" || words[7] != "release" {
		return Stated{}, false
	}
	numbers := []*int{&s.OldestProtocol, &s.Protocol, &s.OldestHandover, &s.Handover}
	for i, word := range []string{words[2], words[3], words[5], words[6]} {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return Stated{}, false
		}
		*numbers[i] = n
	}
	if s.OldestProtocol > s.Protocol || s.OldestHandover > s.Handover {
		return Stated{}, false
	}
	s.Release = words[8]
	return s, true
}
