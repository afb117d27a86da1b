package sandbox

import (
	"fmt"
	"strconv"
	"strings"
)

// prefix tells a request for the end of what takes too much from any other.
const quotaPrefix = "disk limit: "

// Over is the request, in words, to end a container that takes more than it may; ""
// when it does not. Both are bytes.
func QuotaRequest(used, limit uint64) string {
	if used <= limit {
		return ""
	}
	return fmt.Sprintf(quotaPrefix+"Disk usage (%s) exceeds quota (%s)", FormatBytes(used), FormatBytes(limit))
}

// TooDeep is the same for one that cannot be measured.
func DepthRequest() string { return quotaPrefix + ErrTooDeep.Error() }

// Message is what such a request says, in Mesos' words; false for any other.
func QuotaMessage(call string) (string, bool) { return strings.CutPrefix(call, quotaPrefix) }

// Text is an amount as Mesos writes it: in the largest unit of which it is a whole
// number.
func FormatBytes(n uint64) string {
	unit := "B"
	for _, u := range []string{"KB", "MB", "GB", "TB"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatUint(n, 10) + unit
}
