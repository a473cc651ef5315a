#!/usr/bin/env bash
# Sets up, in a message VPN that exists, what ingest-solace needs of a Solace PubSub+ broker: see README.md.
# Needs bash and curl. The objects are in semp/: one attribute per line, settings as ${NAME}.
set -euo pipefail
# A trace (bash -x) would print passwords.
{ set +x; } 2>/dev/null

here=$(dirname "${BASH_SOURCE[0]}")

usage() {
	cat <<'END'
Usage: setup.sh [--dry-run] [--set-passwords]

Creates the billing queue, its dead message queue, profiles and client usernames by SEMP v2, corrects what differs from
this set-up, leaves every other attribute alone and never deletes anything. A second run changes nothing.

  --dry-run        print the requests for an empty VPN and send nothing (needs no password)
  --set-passwords  also set the passwords of client usernames that exist (otherwise only of new ones)
  --help           print this

Required settings (environment; a password NAME also as a file in NAME_FILE):
  SOLACE_SEMP_URL            the broker's SEMP address, such as https://broker:943
  SOLACE_SEMP_USER           a management user who may write to the VPN
  SOLACE_SEMP_PASSWORD       and its password
  SOLACE_VPN                 the message VPN
  SOLACE_USER                the client username of ingest-solace, owner of the queue
  SOLACE_PASSWORD            and its password
  SOLACE_QUEUE               the billing queue
  SOLACE_TOPIC               the topic of billing events, wildcards allowed

Further settings:
  SOLACE_PUBLISHER_USER      a client username for publishers; none is made without it
  SOLACE_PUBLISHER_PASSWORD  and its password
  SOLACE_ACCESS_TYPE         non-exclusive (default: all ingestors consume) or exclusive (one does, the others stand by)
  SOLACE_DEAD_MESSAGE_QUEUE  default: the queue's name and -dmq
  SOLACE_MAX_UNACKED         delivered and not yet acknowledged messages per ingestor, 1000 to 10000, default 5000
  SOLACE_SPOOL_MB            the queue's quota in MB; default: the broker's (5000), or what it has
  SOLACE_PROFILE             prefix of the ACL and client profiles, default chargeonce
  SOLACE_SHUT_OUT            names of other ACL profiles, separated by spaces, that lose the billing topic
  SOLACE_SEMP_CA_FILE        certificate authorities (PEM) for SOLACE_SEMP_URL

Exit code: 0 set up, 1 the broker refused or could not be asked, 2 wrong usage or settings.
END
}

dry_run=false
set_passwords=false
problems='' # what is wrong with the settings, a line each
secrets=()  # what must never be printed
# The planned objects: what to call it, the collection's address below the VPN, the address in it, the file in semp/.
whats=()
collections=()
ids=()
files=()
created=0
changed=0
unchanged=0
batch=''     # requests to be sent, as curl's configuration
batch_size=0 # and how many
separator=$'\036' # between answers: no JSON text holds it
# Functions that compute something leave it in REPLY: a subshell for each costs more than all the rest.

main() {
	parse_arguments "$@"
	read_settings
	plan_objects
	if $dry_run; then
		print_plan
		return
	fi
	look_at_vpn
	plan_exceptions
	carry_out_plan
	look_for_strangers
	say "$created created, $changed changed, $unchanged unchanged"
}

parse_arguments() {
	local argument
	for argument in "$@"; do
		case $argument in
		--dry-run) dry_run=true ;;
		--set-passwords) set_passwords=true ;;
		-h | --help)
			usage
			exit 0
			;;
		*)
			complain "unknown argument $argument; see setup.sh --help"
			exit 2
			;;
		esac
	done
}

# read_settings checks every setting before anything is sent, and names all that are wrong at once.
read_settings() {
	local name
	for name in SOLACE_SEMP_URL SOLACE_SEMP_USER SOLACE_VPN SOLACE_USER SOLACE_QUEUE SOLACE_TOPIC; do
		need "$name"
	done
	: "${SOLACE_PUBLISHER_USER:=}" "${SOLACE_SPOOL_MB:=}" "${SOLACE_SHUT_OUT:=}" "${SOLACE_SEMP_CA_FILE:=}"
	: "${SOLACE_ACCESS_TYPE:=non-exclusive}" "${SOLACE_MAX_UNACKED:=5000}" "${SOLACE_PROFILE:=chargeonce}"
	: "${SOLACE_DEAD_MESSAGE_QUEUE:=${SOLACE_QUEUE:+$SOLACE_QUEUE-dmq}}"
	need_secret SOLACE_SEMP_PASSWORD
	need_secret SOLACE_PASSWORD
	if [[ -n $SOLACE_PUBLISHER_USER ]]; then
		need_secret SOLACE_PUBLISHER_PASSWORD
	fi

	matches SOLACE_SEMP_URL '^https?://[^/?#@[:space:]]+/?$' 'an http or https address without path or user'
	matches SOLACE_SEMP_USER '^[^:]+$' 'a name without a colon'
	matches SOLACE_VPN '^[^*?]{1,32}$' 'at most 32 characters without * and ?'
	matches SOLACE_USER '^[^*?]{1,189}$' 'at most 189 characters without * and ?'
	matches SOLACE_PUBLISHER_USER '^[^*?]{1,189}$' 'at most 189 characters without * and ?'
	matches SOLACE_QUEUE "^[^#*?'<>&;][^*?'<>&;]{0,199}\$" "at most 200 characters without *?'<>&; and not beginning with #"
	matches SOLACE_DEAD_MESSAGE_QUEUE "^[^*?'<>&;]{1,200}\$" "at most 200 characters without *?'<>&;"
	matches SOLACE_TOPIC '^.{1,250}$' 'at most 250 characters'
	matches SOLACE_ACCESS_TYPE '^(non-)?exclusive$' 'exclusive or non-exclusive'
	matches SOLACE_PROFILE '^[A-Za-z0-9_]{1,24}$' 'at most 24 letters, digits and _'
	matches SOLACE_SHUT_OUT '^[A-Za-z0-9_ -]+$' 'names of ACL profiles, separated by spaces'
	matches SOLACE_MAX_UNACKED '^([1-9][0-9]{3}|10000)$' 'a whole number from 1000 to 10000'
	# With a quota of 0 the broker keeps only the last message.
	matches SOLACE_SPOOL_MB '^[1-9][0-9]{0,6}$' 'a whole number of MB, not 0'
	for name in SOLACE_SEMP_USER SOLACE_VPN SOLACE_USER SOLACE_PUBLISHER_USER SOLACE_QUEUE SOLACE_DEAD_MESSAGE_QUEUE \
		SOLACE_TOPIC SOLACE_SEMP_CA_FILE; do
		if [[ ${!name:-} == *[[:cntrl:]\"\\]* ]]; then
			wrong "$name holds a quotation mark, a backslash or a control character"
		fi
	done
	if [[ -n ${SOLACE_USER:-} && $SOLACE_USER == "$SOLACE_PUBLISHER_USER" ]]; then
		wrong 'SOLACE_USER and SOLACE_PUBLISHER_USER are the same: the ingestor must not publish, nor a publisher consume'
	fi
	if [[ -n ${SOLACE_QUEUE:-} && $SOLACE_QUEUE == "$SOLACE_DEAD_MESSAGE_QUEUE" ]]; then
		wrong 'SOLACE_QUEUE and SOLACE_DEAD_MESSAGE_QUEUE are the same'
	fi
	if [[ -n $SOLACE_SEMP_CA_FILE && ! -r $SOLACE_SEMP_CA_FILE ]]; then
		wrong "SOLACE_SEMP_CA_FILE: cannot read $SOLACE_SEMP_CA_FILE"
	fi
	if ! $dry_run && ! command -v curl >/dev/null; then
		wrong 'curl is not installed'
	fi
	if [[ -n $problems ]]; then
		complain "$problems
see setup.sh --help"
		exit 2
	fi
	# The addresses of all objects begin with this.
	encode "$SOLACE_VPN"
	vpn_url=${SOLACE_SEMP_URL%/}/SEMP/v2/config/msgVpns/$REPLY
	if [[ $SOLACE_SEMP_URL == http:* ]] && ! $dry_run; then
		complain 'warning: SOLACE_SEMP_URL is http: passwords travel unencrypted'
	fi
}

wrong() { problems+=${problems:+$'\n'}$1; }

need() {
	if [[ -z ${!1:-} ]]; then
		wrong "$1 is required"
	fi
}

# need_secret NAME takes NAME, or what the file in NAME_FILE holds, and keeps it from curl's environment and from print.
need_secret() {
	local name=$1 file=${1}_FILE
	if [[ -n ${!name:-} && -n ${!file:-} ]]; then
		wrong "$name and $file are both set: give one"
	elif [[ -n ${!file:-} ]]; then
		if [[ ! -r ${!file} || -d ${!file} ]]; then
			wrong "$file: cannot read ${!file}"
			return
		fi
		printf -v "$name" '%s' "$(<"${!file}")"
	fi
	# shellcheck disable=SC2163 # the variable that name names is meant
	export -n "$name"
	if [[ -n ${!name:-} ]]; then
		quote "${!name}"
		secrets+=("${!name}" "$REPLY")
		if [[ ${!name} == *[[:cntrl:]]* ]]; then
			wrong "$name holds a line break or another control character"
		fi
	elif ! $dry_run; then
		wrong "$name or $file is required"
	fi
}

# matches NAME PATTERN MEANING: a setting that is given must match.
matches() {
	if [[ -n ${!1:-} && ! ${!1} =~ $2 ]]; then
		wrong "$1 is not $3"
	fi
}

# plan_objects plans what stands in semp/, in an order in which each object finds what it refers to.
plan_objects() {
	local ingest=${SOLACE_PROFILE}_ingest publish=${SOLACE_PROFILE}_publish
	plan "client profile $ingest" clientProfiles "$ingest" client-profile-ingest
	plan "client profile $publish" clientProfiles "$publish" client-profile-publish
	plan "ACL profile $ingest" aclProfiles "$ingest" acl-profile-ingest
	plan "ACL profile $publish" aclProfiles "$publish" acl-profile-publish
	plan_exception publish "$publish"
	encode "$SOLACE_USER"
	plan "client username $SOLACE_USER" clientUsernames "$REPLY" client-username-ingest
	if [[ -n $SOLACE_PUBLISHER_USER ]]; then
		encode "$SOLACE_PUBLISHER_USER"
		plan "client username $SOLACE_PUBLISHER_USER" clientUsernames "$REPLY" client-username-publish
	fi
	encode "$SOLACE_DEAD_MESSAGE_QUEUE"
	plan "queue $SOLACE_DEAD_MESSAGE_QUEUE" queues "$REPLY" dead-message-queue
	encode "$SOLACE_QUEUE"
	queue=queues/$REPLY
	plan "queue $SOLACE_QUEUE" queues "$REPLY" queue
	encode "$SOLACE_TOPIC"
	plan "subscription $SOLACE_TOPIC of queue $SOLACE_QUEUE" "$queue/subscriptions" "$REPLY" queue-subscription
}

plan() {
	whats+=("$1")
	collections+=("$2")
	ids+=("$3")
	files+=("$4")
}

# plan_exception KIND PROFILE plans our topic as a publish or subscribe exception of an ACL profile.
plan_exception() {
	encode "$SOLACE_TOPIC"
	plan "$1 exception $SOLACE_TOPIC of ACL profile $2" "aclProfiles/$2/${1}TopicExceptions" "smf,$REPLY" "$1-exception"
}

# plan_exceptions takes the billing topic from the profiles in SOLACE_SHUT_OUT that allow by default. An exception is the
# opposite of the default, so in a profile that disallows it would open the topic.
plan_exceptions() {
	local profile kind i=0
	for profile in $SOLACE_SHUT_OUT; do
		request GET "/aclProfiles/$profile?select=publishTopicDefaultAction,subscribeTopicDefaultAction"
	done
	send
	for profile in $SOLACE_SHUT_OUT; do
		take "$i"
		i=$((i + 1))
		if [[ $semp_code != 0 ]]; then
			refused "read ACL profile $profile (SOLACE_SHUT_OUT)"
		fi
		for kind in publish subscribe; do
			have "${kind}TopicDefaultAction"
			if [[ $REPLY == '"allow"' ]]; then
				plan_exception "$kind" "$profile"
			fi
		done
	done
}

print_plan() {
	local i profile kind
	for ((i = 0; i < ${#whats[@]}; i++)); do
		body "${files[i]}"
		say "POST $vpn_url/${collections[i]}"$'\n'"$REPLY"
	done
	for profile in $SOLACE_SHUT_OUT; do
		say "GET $vpn_url/aclProfiles/$profile?select=publishTopicDefaultAction,subscribeTopicDefaultAction"
		say 'and, where the default is "allow":'
		for kind in publish subscribe; do
			body "$kind-exception"
			say "POST $vpn_url/aclProfiles/$profile/${kind}TopicExceptions"$'\n'"$REPLY"
		done
	done
}

# carry_out_plan creates what is missing and corrects what differs. It reads everything first and sends only what
# differs: writing some attributes stops a queue's delivery for a moment even if they keep their value, and attributes
# that are not in the files belong to the operator.
carry_out_plan() {
	local i content
	for ((i = 0; i < ${#whats[@]}; i++)); do
		request_object "$i"
	done
	send
	local found_statuses=("${statuses[@]}") found_answers=("${answers[@]}")
	for ((i = 0; i < ${#whats[@]}; i++)); do
		statuses=("${found_statuses[@]}")
		answers=("${found_answers[@]}")
		take "$i"
		if [[ $semp_code == 6 ]]; then # NOT_FOUND
			body "${files[i]}"
			content=$REPLY
			semp POST "/${collections[i]}" "$content"
			if [[ $semp_code == 0 ]]; then
				created=$((created + 1))
				say "created   ${whats[i]}"
				continue
			elif [[ $semp_code != 10 ]]; then # ALREADY_EXISTS: somebody was faster
				refused "create ${whats[i]}"
			fi
			request_object "$i"
			send
			take 0
		fi
		if [[ $semp_code != 0 ]]; then
			refused "read ${whats[i]}"
		fi
		correct "$i"
	done
}

# request_object asks for those attributes of a planned object that its file names. Passwords cannot be read.
request_object() {
	local names='' rest name value
	body "${files[$1]}"
	rest=$REPLY
	while next_attribute; do
		if [[ $name != password ]]; then
			names+=${names:+,}$name
		fi
	done
	request GET "/${collections[$1]}/${ids[$1]}?select=$names"
}

# correct sends the difference between a planned object and answer.
correct() {
	local difference='' report='' rest name value
	body "${files[$1]}"
	rest=$REPLY
	while next_attribute; do
		if [[ $name == password ]]; then
			if $set_passwords; then
				difference+=${difference:+,}"\"$name\":$value"
				report+=${report:+, }$name
			fi
			continue
		fi
		have "$name"
		if [[ $REPLY != "$value" ]]; then
			difference+=${difference:+,}"\"$name\":$value"
			report+=${report:+, }"$name ${REPLY:-(none)} -> $value"
		fi
	done
	if [[ -z $difference ]]; then
		unchanged=$((unchanged + 1))
		say "unchanged ${whats[$1]}"
		return
	fi
	semp PATCH "/${collections[$1]}/${ids[$1]}" "{$difference}"
	if [[ $semp_code != 0 ]]; then
		refused "change ${whats[$1]} ($report)"
	fi
	changed=$((changed + 1))
	say "changed   ${whats[$1]}: $report"
}

# body FILE: semp/FILE.json with the settings in place. A line whose setting is empty is left out.
body() {
	local line rest name value text=''
	while IFS= read -r line; do
		rest=''
		# From the right, so that what a setting holds is never taken for another setting.
		while [[ $line =~ ^(.*)\$\{([A-Z_]+)\}(.*)$ ]]; do
			line=${BASH_REMATCH[1]}
			name=${BASH_REMATCH[2]}
			rest=${BASH_REMATCH[3]}$rest
			value=${!name:-}
			if [[ $name == *_PASSWORD ]] && $dry_run; then
				value='[redacted]'
			fi
			if [[ -z $value ]]; then
				continue 2
			fi
			case $name in
			SOLACE_MAX_UNACKED | SOLACE_SPOOL_MB) # numbers have no quotation marks
				line=${line%\"}
				rest=$value${rest#\"}
				;;
			*)
				quote "$value"
				rest=$REPLY$rest
				;;
			esac
		done
		text+=$line$rest$'\n'
	done <"$here/semp/$1.json"
	REPLY=${text%$'\n'}
}

# next_attribute takes the next attribute out of rest, a body, into name and value: variables of the caller.
next_attribute() {
	local line
	while [[ -n $rest ]]; do
		line=${rest%%$'\n'*}
		if [[ $rest == *$'\n'* ]]; then rest=${rest#*$'\n'}; else rest=''; fi
		if [[ $line =~ ^[[:space:]]*\"([A-Za-z0-9]+)\":[[:space:]]*(.*[^,]),?$ ]]; then
			name=${BASH_REMATCH[1]}
			value=${BASH_REMATCH[2]}
			return 0
		fi
	done
	return 1
}

# have NAME: the value of an attribute in answer as JSON text, nothing if it is not there.
have() {
	local pattern="\"$1\"[[:space:]]*:[[:space:]]*(\"([^\"\\]|\\\\.)*\"|[^],}[:space:]]+)"
	REPLY=''
	if [[ $answer =~ $pattern ]]; then
		REPLY=${BASH_REMATCH[1]//\\\///}
	fi
}

look_at_vpn() {
	semp GET '?select=enabled,authenticationBasicEnabled,authenticationBasicType'
	if [[ $semp_code != 0 ]]; then
		refused "read message VPN $SOLACE_VPN"
	fi
	have enabled
	if [[ $REPLY == false ]]; then
		complain "warning: message VPN $SOLACE_VPN is disabled"
	fi
	have authenticationBasicEnabled
	local enabled=$REPLY
	have authenticationBasicType
	if [[ $enabled:$REPLY == 'true:"none"' ]]; then
		complain "warning: message VPN $SOLACE_VPN checks no passwords: anybody may log in as $SOLACE_USER and take billing events"
	fi
}

# look_for_strangers warns of what this script did not make and does not remove: it may be somebody's work.
look_for_strangers() {
	local ingest=${SOLACE_PROFILE}_ingest publish=${SOLACE_PROFILE}_publish
	list "$queue/subscriptions" '' subscriptionTopic
	list "aclProfiles/$ingest/subscribeTopicExceptions" '' subscribeTopicException
	list "aclProfiles/$ingest/publishTopicExceptions" '' publishTopicException
	list "aclProfiles/$publish/subscribeTopicExceptions" '' subscribeTopicException
	list "aclProfiles/$publish/publishTopicExceptions" '' publishTopicException
	list aclProfiles 'where=subscribeTopicDefaultAction==allow&' aclProfileName
	list aclProfiles 'where=publishTopicDefaultAction==allow&' aclProfileName
	send
	strangers 0 subscriptionTopic "$SOLACE_TOPIC" "queue $SOLACE_QUEUE takes messages from another topic too:"
	strangers 1 subscribeTopicException '' "ACL profile $ingest lets the ingestor receive Direct messages on"
	strangers 2 publishTopicException '' "ACL profile $ingest lets the ingestor publish to"
	strangers 3 subscribeTopicException '' "ACL profile $publish lets publishers receive Direct messages on"
	strangers 4 publishTopicException "$SOLACE_TOPIC" "ACL profile $publish lets publishers also publish to"
	strangers 5 aclProfileName '' 'billing events go as Direct messages to whoever subscribes (see SOLACE_SHUT_OUT) with ACL profile'
	strangers 6 aclProfileName '' 'billing events may be published (see SOLACE_SHUT_OUT) with ACL profile'
}

list() { request GET "/$1?${2}select=$3&count=100"; }

# strangers INDEX ATTRIBUTE KNOWN TEXT warns with TEXT of each object in a list that is not KNOWN; of ACL profiles, those
# in SOLACE_SHUT_OUT are known, and the broker's own, which begin with #.
strangers() {
	local attribute=$2 known=$3 text=$4 rest name
	take "$1"
	if [[ $semp_code != 0 ]]; then
		refused "look for: $text"
	fi
	local pattern="\"$attribute\"[[:space:]]*:[[:space:]]*\"(([^\"\\]|\\\\.)*)\"(.*)"
	rest=$answer
	while [[ $rest =~ $pattern ]]; do
		name=${BASH_REMATCH[1]//\\\///}
		rest=${BASH_REMATCH[3]}
		if [[ $name == "$known" ]]; then
			continue
		fi
		if [[ $attribute == aclProfileName && ($name == '#'* || " $SOLACE_SHUT_OUT " == *" $name "*) ]]; then
			continue
		fi
		complain "warning: $text $name"
	done
	if [[ $answer == *'"nextPageUri"'* ]]; then
		complain "warning: more than 100, the rest was not looked at: $text"
	fi
}

# semp METHOD PATH [BODY] sends one request and takes its answer.
semp() {
	request "$@"
	send
	take 0
}

# request METHOD PATH [BODY] adds a request to the next batch.
request() {
	local method=$1 path=$2 content=${3:-} section
	quote "$SOLACE_SEMP_USER:$SOLACE_SEMP_PASSWORD"
	section="user = \"$REPLY\""
	quote "$vpn_url$path"
	section+=$'\n'"url = \"$REPLY\""$'\n'"request = \"$method\""
	section+=$'\n''header = "Accept: application/json"'
	if [[ -n $content ]]; then
		quote "$content"
		section+=$'\n''header = "Content-Type: application/json"'
		section+=$'\n'"data-binary = \"${REPLY//$'\n'/\\n}\""
	fi
	if [[ -n $SOLACE_SEMP_CA_FILE ]]; then
		quote "$SOLACE_SEMP_CA_FILE"
		section+=$'\n'"cacert = \"$REPLY\""
	fi
	section+=$'\n'silent$'\n'show-error$'\n'globoff$'\n''connect-timeout = 10'$'\n''max-time = 60'
	section+=$'\n'"write-out = \"$separator%{http_code}\""$'\n'
	batch+=${batch:+$'next\n'}$section
	batch_size=$((batch_size + 1))
}

# send sends the batch over one connection; take then takes the answers.
send() {
	local out size=$batch_size
	statuses=()
	answers=()
	if ((size == 0)); then
		return
	fi
	# All of it goes through standard input: a command line can be read by every user of the machine.
	if ! out=$(printf 'fail-early\n%s' "$batch" | curl --disable --config -); then
		complain "could not ask $SOLACE_SEMP_URL"
		exit 1
	fi
	batch=''
	batch_size=0
	while [[ $out == *"$separator"* ]]; do
		answers+=("${out%%"$separator"*}")
		out=${out#*"$separator"}
		statuses+=("${out:0:3}")
		out=${out:3}
	done
	if ((${#statuses[@]} != size)); then
		complain "could not ask $SOLACE_SEMP_URL: ${#statuses[@]} answers to $size requests"
		exit 1
	fi
}

# take INDEX sets http_status, answer and semp_code (0 for success) to those of a request of the last batch, and semp_why
# to what the broker says of a refusal. Decisions hang on the codes: the broker's status words and descriptions may
# change (SEMP Error Handling).
take() {
	http_status=${statuses[$1]}
	answer=${answers[$1]}
	semp_code=0
	semp_why=''
	if [[ $http_status == 200 && $answer =~ \"responseCode\"[[:space:]]*:[[:space:]]*200 ]]; then
		return
	fi
	semp_code=-1
	local code='"error"[[:space:]]*:[[:space:]]*\{[^{}]*"code"[[:space:]]*:[[:space:]]*([0-9]+)'
	local why='"description"[[:space:]]*:[[:space:]]*"(([^"\]|\\.)*)"'
	local word='"status"[[:space:]]*:[[:space:]]*"([A-Z_]+)"'
	if [[ $answer =~ $code ]]; then
		semp_code=${BASH_REMATCH[1]}
		semp_why="SEMP error $semp_code"
		if [[ $answer =~ $word ]]; then semp_why+=" ${BASH_REMATCH[1]}"; fi
		if [[ $answer =~ $why ]]; then
			redact "${BASH_REMATCH[1]}" # as JSON spells it, before that is undone
			semp_why+=": ${REPLY//\\\"/\"}"
		fi
	fi
}

# refused WHAT ends the script with what the broker said.
refused() {
	redact "$answer"
	local why=${semp_why:-not an answer of SEMP v2: ${REPLY:0:200}}
	case $http_status:$semp_code in
	401:*) why+=$'\n''is SOLACE_SEMP_USER or SOLACE_SEMP_PASSWORD wrong?' ;;
	*:72) why+=$'\n'"SOLACE_SEMP_USER needs read-write access to message VPN $SOLACE_VPN" ;;
	esac
	complain "$1: HTTP $http_status, $why"
	exit 1
}

# quote TEXT escapes for JSON and for curl's configuration alike; control characters have been refused before.
quote() {
	REPLY=${1//\\/\\\\}
	REPLY=${REPLY//\"/\\\"}
}

# encode TEXT percent-encodes a name for a URL, byte by byte.
encode() {
	local LC_ALL=C text=$1 i byte
	REPLY=''
	for ((i = 0; i < ${#text}; i++)); do
		byte=${text:i:1}
		case $byte in
		[A-Za-z0-9._~-]) ;;
		*)
			printf -v byte '%d' "'$byte"
			printf -v byte '%%%02X' "$((byte & 255))" # bytes above 127 come out negative
			;;
		esac
		REPLY+=$byte
	done
}

redact() {
	REPLY=$1
	local secret
	if ((${#secrets[@]} > 0)); then
		for secret in "${secrets[@]}"; do
			REPLY=${REPLY//"$secret"/[redacted]}
		done
	fi
}

say() {
	redact "$1"
	printf '%s\n' "$REPLY"
}

# complain prints each line with the script's name before it.
complain() {
	redact "$1"
	printf 'setup.sh: %s\n' "${REPLY//$'\n'/$'\n'setup.sh: }" >&2
}

main "$@"
