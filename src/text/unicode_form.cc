#include "text/unicode_form.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>

#include "base/check.h"

namespace halfbyte {
namespace {

// Characters that Unicode got later pass as they are: the tables of the reference library
// (tokenizers 0.23, by its crate unicode-normalization-alignments 0.1.12) end there, and models
// have been trained on what it makes of text.
constexpr const char* kKnown = "[:age=9.0:]";

struct Normalizers {
  Normalizers() {
    UErrorCode error = U_ZERO_ERROR;
    known.applyPattern(kKnown, error).freeze();
    const auto* all_nfc = icu::Normalizer2::getNFCInstance(error);
    const auto* all_nfkc = icu::Normalizer2::getNFKCInstance(error);
    HB_CHECK(U_SUCCESS(error), "ICU has no data: {}", u_errorName(error));
    nfc.emplace(*all_nfc, known);
    nfkc.emplace(*all_nfkc, known);
  }
  icu::UnicodeSet known;
  std::optional<icu::FilteredNormalizer2> nfc, nfkc;
};

const icu::Normalizer2& NormalizerOf(UnicodeForm form) {
  static const Normalizers normalizers;
  return form == UnicodeForm::kNfc ? *normalizers.nfc : *normalizers.nfkc;
}

// Where the result has what stands at or after byte `source` of the text (before it, if `is_end`).
// Sources must not go down from call to call.
size_t Follow(icu::Edits::Iterator& edits, size_t source, bool is_end) {
  UErrorCode error = U_ZERO_ERROR;
  const auto index = static_cast<int32_t>(source);
  const bool inside = edits.findSourceIndex(index, error) != 0;
  HB_CHECK(U_SUCCESS(error), "ICU edits: {}", u_errorName(error));
  const int32_t before = index - edits.sourceIndex();
  int32_t at = edits.destinationIndex();
  if (inside && !edits.hasChange()) at += before;
  if (inside && edits.hasChange() && before > 0 && !is_end) at += edits.newLength();
  return static_cast<size_t>(at);
}

}  // namespace

Result<std::optional<std::string>> ToForm(UnicodeForm form, std::string_view text,
                                          std::vector<ByteRange>* ranges) {
  if (form == UnicodeForm::kAsIs) return std::nullopt;
  const icu::Normalizer2& normalizer = NormalizerOf(form);
  const icu::StringPiece source(text.data(), static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(source, error) != 0) return std::nullopt;
  std::string normal;
  icu::StringByteSink<std::string> sink(&normal, source.length());
  icu::Edits edits;
  normalizer.normalizeUTF8(0, source, sink, &edits, error);
  if (U_FAILURE(error) != 0) {
    return MakeError("text of {} bytes is too long to normalize ({})", text.size(),
                     u_errorName(error));
  }
  icu::Edits::Iterator iterator = edits.getFineIterator();
  for (ByteRange& range : *ranges) {
    const size_t begin = Follow(iterator, range.begin, /*is_end=*/false);
    range = {begin, std::max(begin, Follow(iterator, range.end, /*is_end=*/true))};
  }
  return normal;
}

}  // namespace halfbyte
