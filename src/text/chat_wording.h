// All wording of chats that a model directory brings.
#pragma once

#include "text/effort_texts.h"
#include "text/section_texts.h"

namespace halfbyte {

struct ChatWording {
  EffortTexts efforts;
  SectionTexts sections;
};

}  // namespace halfbyte
