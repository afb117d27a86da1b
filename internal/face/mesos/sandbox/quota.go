package sandbox

import (
	"fmt"
	"strconv"
	"strings"
)

// quotaPrefix marks stop requests that the disk quota made.
const quotaPrefix = "disk limit: "

// QuotaRequest returns the text of the request to stop a container that uses more than
// limit bytes; "" if it does not.
func QuotaRequest(used, limit uint64) string {
	if used <= limit {
		return ""
	}
	return fmt.Sprintf(quotaPrefix+"Disk usage (%s) exceeds quota (%s)", FormatBytes(used), FormatBytes(limit))
}

// DepthRequest is the same for a sandbox that is too deep to be measured.
func DepthRequest() string { return quotaPrefix + ErrTooDeep.Error() }

// QuotaMessage returns Mesos' text for such a request; false for any other request.
func QuotaMessage(call string) (string, bool) { return strings.CutPrefix(call, quotaPrefix) }

// FormatBytes formats an amount as Mesos does: in the largest unit that divides it.
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
