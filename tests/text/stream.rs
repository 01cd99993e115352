//! Streaming: no half characters, stop strings across tokens, end tokens.

use glm5::text::{Detokenizer, Finish, Specials, StopMatcher, TextStream, Tokenizer};
use proptest::prelude::*;

use crate::common::{NANO, golden, ids, tiny};

#[test]
fn stream_goldens() {
    for case in golden("stream.json").as_array().unwrap() {
        let mut detokenizer = Detokenizer::new(&NANO, false);
        let emitted: Vec<String> =
            ids(&case["ids"]).into_iter().map(|id| detokenizer.push(id).unwrap().to_owned()).collect();
        assert_eq!(serde_json::json!(emitted), case["emitted"], "{}", case["text"]);
        assert_eq!(emitted.concat(), case["text"].as_str().unwrap());
        assert_eq!(detokenizer.flush(), "");
    }
}

#[test]
fn incomplete_and_broken_characters() {
    let mut detokenizer = Detokenizer::new(&NANO, true);
    let mut push = |id| detokenizer.push(id).unwrap().to_owned();
    // The first three of the four bytes of the whale, then a letter: one replacement, as for the whole.
    assert_eq!([push(172), push(253), push(238), push(64)], ["", "", "", "\u{FFFD}a"]);
    // A byte that cannot begin a character shows at once.
    assert_eq!(push(253), "\u{FFFD}");
    // Marks are not shown and do not complete a character.
    assert_eq!([push(172), push(4084), push(253), push(238), push(111)], ["", "", "", "", "🐳"]);
    assert_eq!(push(172), "");
    assert_eq!(detokenizer.flush(), "\u{FFFD}");
    assert_eq!(detokenizer.flush(), "");
    assert!(detokenizer.push(4096).is_err());
}

/// The text up to the stop string that is complete first, and its index; of equals the longest.
fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for end in 0..=text.len() {
        let Some(head) = text.get(..end) else { continue };
        let found = (0..stops.len()).filter(|&i| head.ends_with(&stops[i])).max_by_key(|&i| stops[i].len());
        if let Some(i) = found {
            return (head[..end - stops[i].len()].to_owned(), Some(i));
        }
    }
    (text.to_owned(), None)
}

proptest! {
    /// Any tokens, also those that make no text: the pieces together are the lossy text of all bytes.
    #[test]
    fn pieces_make_the_whole(
        ids in prop::collection::vec(prop_oneof![3 => 94u32..256, 1 => 0u32..4096], 0..60),
        skip in any::<bool>(),
    ) {
        let mut detokenizer = Detokenizer::new(&NANO, skip);
        let mut text = String::new();
        for &id in &ids {
            text.push_str(detokenizer.push(id).unwrap());
        }
        text.push_str(detokenizer.flush());
        prop_assert_eq!(text, NANO.decode(&ids, skip).unwrap());
    }

    /// Wherever the text is cut, the same is shown as by a search in the whole, and as early as can be.
    #[test]
    fn stops_as_a_search_in_the_whole(
        pieces in prop::collection::vec("[abé]{0,3}", 0..12),
        stops in prop::collection::hash_set("[abé]{1,4}", 0..4),
    ) {
        let stops: Vec<String> = stops.into_iter().collect();
        let mut matcher = StopMatcher::new(&stops).unwrap();
        let (mut shown, mut seen) = (String::new(), String::new());
        for piece in &pieces {
            shown.push_str(matcher.push(piece));
            seen.push_str(piece);
            let (want, found) = naive(&seen, &stops);
            prop_assert_eq!(matcher.found(), found);
            if found.is_some() {
                prop_assert_eq!(&shown, &want);
                break;
            }
            // What is held back begins a stop string, and so does nothing longer.
            prop_assert!(want.starts_with(&shown));
            let begins = |at: usize| stops.iter().any(|s| s.starts_with(&want[at..]));
            for (at, _) in want.char_indices() {
                prop_assert!(at < shown.len() || at > shown.len() || begins(at));
                prop_assert!(at >= shown.len() || !begins(at));
            }
        }
        if matcher.found().is_none() {
            shown.push_str(matcher.flush());
            prop_assert_eq!(shown, seen);
        } else {
            prop_assert_eq!(matcher.push("more"), "");
            prop_assert_eq!(matcher.flush(), "");
        }
    }
}

#[test]
fn the_first_to_be_complete_stops() {
    let end = |text: &str, stops: &[&str]| {
        let mut matcher = StopMatcher::new(stops).unwrap();
        (matcher.push(text).to_owned(), matcher.found())
    };
    assert_eq!(end("xabcd", &["abcd", "bc"]), ("xa".into(), Some(1)));
    assert_eq!(end("xabc", &["bc", "abc"]), ("x".into(), Some(1)));
    assert_eq!(end("xab", &["abc"]), ("x".into(), None));
    let none: [&str; 0] = [];
    assert_eq!(end("xab", &none), ("xab".into(), None));
    let error = StopMatcher::new(&["a", ""]).unwrap_err().to_string();
    assert_eq!(error, "stop: expected texts of at least one character, got an empty one");
}

fn run(tokenizer: &Tokenizer, ids: &[u32], stops: &[&str]) -> (Vec<String>, Option<Finish>) {
    let mut stream = TextStream::new(tokenizer, stops).unwrap();
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap().to_owned()).collect();
    if stream.finish().is_none() {
        pieces.push(stream.flush().to_owned());
    }
    (pieces, stream.finish())
}

#[test]
fn answers_end() {
    let ids = NANO.encode("Hi there<|user|> more", Specials::Parse).unwrap();
    let user = ids.iter().position(|&id| id == 4084).unwrap();
    let (pieces, finish) = run(&NANO, &ids, &[]);
    assert_eq!(pieces.concat(), "Hi there");
    assert_eq!(finish, Some(Finish::EndToken(4084)));
    assert!(pieces[user..].iter().all(String::is_empty));
    // Every end token of the file ends; other marks are passed over in silence.
    for &end in NANO.end_tokens() {
        assert_eq!(run(&NANO, &[4085, 64, end, 64], &[]).1, Some(Finish::EndToken(end)));
    }
    assert_eq!(
        run(&NANO, &[4085, 64, 4087], &[]),
        (vec!["".into(), "a".into(), "<think>".into(), "".into()], None)
    );
    // What was held back comes with the end token, or with the caller's end; half a character too.
    let tiny = Tokenizer::new(tiny()).unwrap();
    assert_eq!(run(&tiny, &[64, 65, 258], &["abc"]).0, ["", "", "ab"]);
    assert_eq!(run(&tiny, &[64, 65], &["abc"]), (vec!["".into(), "".into(), "ab".into()], None));
    assert_eq!(run(&NANO, &[64, 172, 4077], &[]).0, ["a", "", "\u{FFFD}"]);
    // A stop string over three tokens, and the end of the bytes as one.
    assert_eq!(
        run(&tiny, &[87, 64, 65, 66, 67], &["abc"]),
        (vec!["x".into(), "".into(), "".into(), "".into(), "".into()], Some(Finish::StopString(0)))
    );
    assert_eq!(run(&NANO, &[64, 172, 4077], &["\u{FFFD}"]).1, Some(Finish::StopString(0)));
    assert!(TextStream::new(&NANO, &[""]).is_err());
    assert!(TextStream::new(&NANO, &["x"]).unwrap().push(5000).is_err());
}
